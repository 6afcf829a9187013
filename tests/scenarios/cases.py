"""Cases with scenario, profile and the expected effect of the profile."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broadside.lab.profiles import SERVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class LabTestbed:
    """Lab that several cases share.

    The default is 1:100 of eight 10 Gbit/s VMs behind a 48 Gbit/s device. Four pairs are below its
    limit and eight are above.

    Attributes:
        services: Services of the server agents in addition to iperf3.
        devices: Firewall interfaces by the name of the device with telemetry.
        profile: Profile of the lab from the start.
        mtu: MTU of all links.
        counts_sessions: Whether the session table of the firewall is the device's telemetry.
    """

    pairs_count: int = 8
    scale: int = 100
    nic_bits_per_second: int = 100_000_000
    firewall_bits_per_second: int = 480_000_000
    services: str | None = None
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profile: str = "plain"
    counts_sessions: bool = False
    mtu: int = 1500


TESTBEDS: Final[Mapping[str, LabTestbed]] = {
    "range": LabTestbed(services="http=8080 https=8443 ftp=2121"),
    # With telemetry from an snmpd in the firewall's namespace.
    "device": LabTestbed(devices={"fw": ("c0", "s0")}),
    # Two firewalls behind a balancer, with telemetry for each link.
    "links": LabTestbed(
        nic_bits_per_second=40_000_000,
        firewall_bits_per_second=800_000_000,
        devices={"fw-a": ("sa",), "fw-b": ("sb",)},
        profile="two-links",
    ),
    # Two firewalls with processes that read all forwarded packets, like a service.
    "boxes": LabTestbed(
        pairs_count=4,
        nic_bits_per_second=10_000_000,
        firewall_bits_per_second=200_000_000,
        devices={"fw-a": ("sa",), "fw-b": ("sb",)},
        profile="service-cef",
    ),
    # Another VM size with half the NIC rate, which its agents know.
    "small": LabTestbed(pairs_count=4, nic_bits_per_second=50_000_000, services="ftp=2121"),
    # One pair, 1:10 of a 5 Gbit/s VM. Its path has 20 ms, ten times the real 2 ms. So a window of
    # 128 KiB has the same effect at the lab's rate as at the real rate over 2 ms.
    "path": LabTestbed(
        pairs_count=1,
        scale=10,
        nic_bits_per_second=500_000_000,
        firewall_bits_per_second=900_000_000,
    ),
    # Two pairs of connections, whose sessions the firewall's table counts.
    "connections": LabTestbed(
        pairs_count=2,
        scale=1,
        nic_bits_per_second=400_000_000,
        firewall_bits_per_second=200_000_000,
        services="connections=9000",
        counts_sessions=True,
    ),
    # Thirty pairs of connections, far below all limits.
    "thirty-connections": LabTestbed(
        pairs_count=30,
        scale=1,
        nic_bits_per_second=20_000_000,
        firewall_bits_per_second=200_000_000,
        services="connections=9000",
        counts_sessions=True,
    ),
    # Two pairs of streams and two of connections through a device that slows with its table.
    "storm": LabTestbed(
        pairs_count=4,
        scale=1,
        nic_bits_per_second=400_000_000,
        # A bucket with less than a super frame (64 KiB) would block frames that are in its queue
        # when the rate falls.
        firewall_bits_per_second=240_000_000,
        services="connections=9000",
        counts_sessions=True,
    ),
    # Jumbo frames, as on Azure and in a data centre.
    **{f"jumbo-{mtu}": LabTestbed(pairs_count=4, mtu=mtu) for mtu in (4088, 9000)},
    # Thirty pairs far below all limits, so that their pace is their rate.
    "thirty": LabTestbed(
        pairs_count=30, nic_bits_per_second=20_000_000, firewall_bits_per_second=600_000_000
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected results of a case and of each trial of its study.

    Attributes:
        share: Ratio to the NIC rates of its senders, low and high.
        trials_not_limited_by: Bottleneck that no trial of a study may name.
        rate_ratio_of: Name of an earlier case, and low and high ratio to its rate.
        says: Words of a finding or of the conclusion.
        cost_ratio: Low and high of b / a in an A/B comparison.
        product_megabytes: Bandwidth-delay product in the advice, within 15 %.
        fall_within_s: Limit for the time of the device's failure.
        pauses_within_s: Limit for the time of each pause. There are no other spikes.
        modes: Low and high ratio of each mode's rate to the first mode.
        steps_within_s: Limit for the time of each growth. There are no other steps.
        step_ratio: Ratio of one unit to the device's rate, within 5 %.
        outage_within_s: Limits for the length and for the start of an outage by probes.
        unit_change: The only change of a unit, "joined" or "left", dated by the event of a drill.
        told: Low and high of device metrics by name, for the run or every trial.
        shares_within: Limit for the difference to the shares that the kernel counted.
        cpu_within: Limit for the difference to the CPU that the kernel counted for each
            device's process. Each mode needs more than the one before.
        completeness: Low and high ratio of the planned pair-seconds, for every trial.
        lost_says: Words of the reason for a pair that was not completely measured.
        traffic_s: Shortest and longest duration of the first burst.
        found: Planted limit of a search, and largest relative difference to it. The lowest failing
            load has ``bottleneck``.
        fall_to: Rate after the device's failure relative to the one before, and largest relative
            difference to it.
        sessions_within: Limit for the residual of the device's sessions, set up and torn down.
        stop_spread_max_s: Limit for the time between the stops of the first and the last pair.
    """

    verdict: str = "pass"
    share: tuple[float, float] | None = None
    bottleneck: str | None = None
    trials_not_limited_by: str | None = None
    rate_ratio_of: tuple[str, float, float] | None = None
    says: str | None = None
    unit_change: str | None = None
    cost_ratio: tuple[float, float] | None = None
    knee: tuple[float, float] | None = None
    product_megabytes: float | None = None
    fall_within_s: float | None = None
    pauses_within_s: float | None = None
    modes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    steps_within_s: float | None = None
    step_ratio: float | None = None
    outage_within_s: tuple[float, float] | None = None
    told: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shares_within: float | None = None
    cpu_within: float | None = None
    completeness: tuple[float, float] = (0.95, 1.0)
    lost_says: str | None = None
    traffic_s: tuple[int, int] | None = None
    stop_spread_max_s: float | None = None
    found: tuple[float, float] | None = None
    fall_to: tuple[float, float] | None = None
    sessions_within: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Row of the table, which is a scenario in a profile or a study over it.

    Attributes:
        question: Question of a study.
        burst_s: Duration of a burst. Above 10 s a device counter with 1 s bins agrees within the
            tolerance.
    """

    name: str
    scenario: str
    testbed: str = "range"
    profile: str = "plain"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    question: Mapping[str, Any] | None = None
    burst_s: int = 12
    expected: Expected = Expected()


# Engines that do not report their segment size may use 536-byte segments, which the device counter
# cannot exclude.
SEGMENTS_UNTOLD: Final[Mapping[str, Any]] = {"objective.residual_max_ratio": 0.1}

# lftp has no start gate, so two cores start 4 x 64 segments within about 100 ms.
LFTP: Final[Mapping[str, Any]] = {**SEGMENTS_UNTOLD, "objective.start_spread_max_s": 0.3}


HALF: Final = ", half the NIC"


def _modes(*names: str) -> list[Mapping[str, Any]]:
    return [{"name": name} for name in names]


# These cases run on both VM sizes.
SENT: Final = (
    Case(name="native, 1 flow", scenario="native-1-flow", expected=Expected(share=(0.9, 1.0))),
    Case(
        name="native, 64 flows",
        scenario="native-64-flows",
        expected=Expected(bottleneck="client-nic"),
    ),
    Case(name="VXLAN, 1 flow", scenario="vxlan-1-flow", expected=Expected(share=(0.86, 0.97))),
    Case(
        name="VXLAN, 64 flows",
        scenario="vxlan-64-flows",
        expected=Expected(rate_ratio_of=("native, 64 flows", 0.90, 0.99)),
    ),
    Case(
        name="FTP, 1 flow",
        scenario="ftp-1-flow",
        overrides=SEGMENTS_UNTOLD,
        expected=Expected(share=(0.86, 1.0)),
    ),
    Case(
        name="lftp, 64 segments in VXLAN",
        scenario="ftp-64-segments-vxlan",
        overrides=LFTP,
        expected=Expected(share=(0.86, 0.97)),
    ),
)


# Payload of all pairs in bit/s at real scale, and IP bytes per payload byte.
_PACED: Final = 30 * 200_000_000
_IP_RATIO: Final = 1500 / 1448


def _when_certain(margin: float, burst_s: int, expected: Expected) -> Case:
    """Return a case with a limit so that the rate is above it by this ratio."""
    overrides = {
        "pairs_count": 30,
        "bursts_count": 1,
        "traffic.streams_count": 1,
        "traffic.stream_bits_per_second": _PACED // 30,
        "objective.target_bits_per_second": _PACED * _IP_RATIO / (1 + margin),
        "objective.tolerance_ratio": 0.0,
        "objective.stop": "when-certain",
        # Two cores start sixty agents.
        "objective.start_spread_max_s": 1.0,
        "lead_s": 12,
    }
    return Case(
        name=f"when-certain, margin {margin:+.1%}",
        scenario="native-1-flow",
        testbed="thirty",
        overrides=overrides,
        burst_s=burst_s,
        expected=expected,
    )


# The third one is scaled: with a margin of 0.2 %, a burst of 280 s runs to its end as well.
CERTAIN: Final = (
    _when_certain(
        0.05, 280, Expected(traffic_s=(60, 89), stop_spread_max_s=1.0, says="stopped-early")
    ),
    _when_certain(
        -0.05,
        280,
        Expected(verdict="fail", traffic_s=(60, 89), stop_spread_max_s=1.0, says="stopped-early"),
    ),
    _when_certain(
        0.002,
        90,
        Expected(verdict="inconclusive", traffic_s=(90, 90), says="not-stopped-early"),
    ),
)


def _at_half_the_nic(case: Case) -> Case:
    """Return the case for the smaller VM size. A rate limited by the NIC is halved."""
    expected = case.expected
    if expected.rate_ratio_of is not None:
        base, low, high = expected.rate_ratio_of
        expected = replace(expected, rate_ratio_of=(f"{base}{HALF}", low, high))
    elif expected.bottleneck == "client-nic":
        expected = replace(expected, rate_ratio_of=(case.name, 0.45, 0.55))
    return replace(case, name=f"{case.name}{HALF}", testbed="small", expected=expected)


# With 256 streams, the chance that one of 16 units gets none is 2e-6.
_UNIT_STREAMS: Final[Mapping[str, Any]] = {
    "pairs_count": 4,
    "bursts_count": 1,
    "objective.start_spread_max_s": 0.3,
}


def _units(count: int, profile: str = "", **changes: Any) -> Case:
    """Return a case for a device of units with a known number."""
    expected = Expected(
        verdict="measured",
        told={"seen_units_count": (count, count)},
        says="units carried the burst",
    )
    return Case(
        name=f"units: {profile or count}",
        scenario="native-64-flows",
        profile=profile or f"units-{count}",
        overrides={**_UNIT_STREAMS, **changes.pop("overrides", {})},
        burst_s=20,
        expected=replace(expected, **changes),
    )


# Each request has a connection. The lab divides the rate by 100. The device counter of a short
# burst of answers has a residual interval of up to 8 %.
_UNIT_REQUESTS: Final[Mapping[str, Any]] = {
    "objective.residual_max_ratio": 0.1,
    "traffic.options.requests_per_second": 3200,
    "traffic.options.body_bytes": 100_000,
    "traffic.options.keepalive": False,
}


def _drilled_units(name: str, state: str, traffic: Mapping[str, Any], **expected: Any) -> Case:
    """Return a case in which a unit of four changes under load."""
    units = {"seen_units_count": (4, 4), "unit_left_count": (1, 1)}
    return Case(
        name=f"units: one {name} under load",
        scenario="http-1mb" if "traffic.options.keepalive" in traffic else "native-64-flows",
        profile="units-4",
        question={"kind": "drill", "switch": "units", "state": state, "at_s": 12},
        burst_s=30,
        overrides={**_UNIT_STREAMS, **traffic},
        expected=Expected(**{"told": units, **expected}),
    )


UNITS: Final = (
    *map(_units, (2, 3, 4, 8, 16)),
    # 48 to 80 Mbit/s through units of 30 Mbit/s, one of which carries half.
    _units(4, "units-4-slow", says="slow-unit"),
    # Streams at a rate that all units but the slow one carry.
    replace(
        _units(
            4,
            "units-4-slow",
            says="slow-unit",
            bottleneck="one-unit",
            overrides={"traffic.stream_bits_per_second": 35_000_000},
        ),
        name="units: one at its limit",
    ),
    # A pair whose control connection is on the unit that leaves has no result of this burst.
    _drilled_units(
        "leaves",
        "units-4-left",
        {"traffic.streams_count": 16},
        verdict="measured or inconclusive",
        completeness=(0.5, 1.0),
        unit_change="left",
        says="sessions were cut",
    ),
    _drilled_units(
        "drains",
        "units-4-drained",
        _UNIT_REQUESTS,
        unit_change="left",
    ),
    _drilled_units(
        "joins",
        "units-5",
        _UNIT_REQUESTS,
        unit_change="joined",
        told={"seen_units_count": (5, 5), "unit_joined_count": (1, 1)},
    ),
)


def _search(profile: str, planted: float, load: str, within: float) -> Case:
    """Return a case that searches the limit of a device."""
    question = {
        "kind": "search",
        f"min_{load}": planted / 2,
        f"max_{load}": planted * 1.7,
        "precision_ratio": 0.01 if within < 0.02 else 0.02,
        "shortfall_max_ratio": within / 4,
    }
    return Case(
        name=f"connections: {profile}",
        scenario="connections-held" if load == "held_count" else "connections-new",
        testbed="connections",
        profile=profile,
        overrides={
            "pairs_count": 2,
            "bursts_count": 1,
            "traffic.probe": None,
            **(
                {"traffic.options.attempts_per_second": 1500, "traffic.options.heartbeat_s": 4}
                if load == "held_count"
                # A second SYN after a second would hide a dropped one.
                else {"traffic.options.timeout_s": 0.9}
            ),
        },
        question=question,
        burst_s=10,
        expected=Expected(bottleneck="firewall", found=(planted, within), sessions_within=0.005),
    )


CONNECTIONS: Final = (
    *(
        _search(f"connections-{planted}{how}", planted, "connections_per_second", 0.03)
        for planted in (500, 1000, 2000)
        for how in ("", "-reset")
    ),
    *(_search(f"held-5000{how}", 5000, "held_count", 0.01) for how in ("", "-reset")),
    Case(
        name="connections: 30 pairs start together",
        scenario="connections-new",
        testbed="thirty-connections",
        overrides={
            "pairs_count": 30,
            "bursts_count": 1,
            "traffic.probe": None,
            "traffic.options.attempts_per_second": 10,
            # Two cores start sixty agents.
            "lead_s": 12,
        },
        burst_s=10,
        expected=Expected(told={"start_spread_s": (0.0, 0.015)}, sessions_within=0.005),
    ),
    # A device without a limit: the generators share two cores with everything else.
    Case(
        name="connections: the generator's own limit",
        scenario="connections-new",
        testbed="connections",
        overrides={
            "pairs_count": 2,
            "bursts_count": 1,
            "traffic.probe": None,
            "traffic.options.timeout_s": 0.9,
        },
        question={
            "kind": "search",
            "min_connections_per_second": 200,
            "max_connections_per_second": 60_000,
            "precision_ratio": 0.3,
            "trials_max_count": 8,
        },
        burst_s=10,
        expected=Expected(
            completeness=(0.5, 1.0), says="was not offered: the generator was the limit"
        ),
    ),
)

STORM: Final = Case(
    name="connections: a storm fills the table, bulk slows",
    scenario="storm",
    testbed="storm",
    profile="table-slow",
    overrides={
        "traffic.probe": None,
        "traffic.streams_count": 8,
        "traffic.block_bytes": 32_768,
        "objective.start_spread_max_s": 0.3,
        # 1,500 sessions are open after 15 s.
        "mix": [
            {
                "pairs_count": 2,
                "traffic": {
                    "engine": "connections",
                    "options": {
                        "mode": "hold",
                        "attempts_per_second": 50,
                        "held_count": 1200,
                        "heartbeat_s": 1,
                    },
                },
            }
        ],
    },
    burst_s=40,
    expected=Expected(verdict="measured", says="collapse", fall_within_s=1.0, fall_to=(0.4, 0.05)),
)

TRANSLATED: Final = (
    Case(
        name="connections: NAT, 64 flows",
        scenario="native-64-flows",
        profile="nat",
        expected=Expected(rate_ratio_of=("native, 64 flows", 0.9, 1.1)),
    ),
    Case(
        name="connections: firewall with NAT, 64 flows",
        scenario="native-64-flows",
        profile="firewall-nat",
        expected=Expected(rate_ratio_of=("native, 64 flows", 0.22, 0.3)),
    ),
    *(
        Case(
            name=f"connections: MTU {mtu}, 64 flows",
            scenario="native-64-flows",
            testbed=f"jumbo-{mtu}",
            expected=Expected(share=(0.95, 1.0)),
        )
        for mtu in (4088, 9000)
    ),
)

# Payload and port, over TCP and UDP.
_SIGNATURES: Final = ("url", "port", "et-id-check-udp", "port-udp")
# Enough canaries in a burst of 20 s for an interval of some percent.
_CANARY: Final[Mapping[str, Any]] = {
    "pairs_count": 4,
    "bursts_count": 1,
    "lead_s": 12,
    "objective.start_spread_max_s": 0.3,
    "traffic.streams_count": 4,
    "traffic.canary": {"consent": "Lab", "signatures": _SIGNATURES, "every_s": 0.25},
}
# Below the packet rate above which the device does not inspect.
_CANARY_IDLE: Final[Mapping[str, Any]] = {
    **_CANARY,
    "traffic.stream_bits_per_second": 200_000_000,
    # The clocks and the other packets of the lab are a larger part of a small rate.
    "objective.residual_max_ratio": 0.3,
}


def _canary(name: str, profile: str, leak: tuple[float, float], **changes: Any) -> Case:
    """Return a case for a device that inspects, with the expected share of leaks."""
    leaks = leak != (0, 0)
    return Case(
        name=f"canary: {name}",
        scenario="native-64-flows",
        profile=profile,
        overrides=changes.pop("overrides", _CANARY),
        burst_s=20,
        expected=replace(
            Expected(
                verdict="fail" if leaks else "measured",
                told={"leak_ratio": leak},
                says="canary-leaked" if leaks else "canary-blocked",
            ),
            **changes,
        ),
    )


# With 320 canaries in a burst, the ranges have four standard deviations.
CANARIES: Final = (
    _canary("no leak", "inspects-leak-0", (0, 0)),
    # Long enough for at least one leak.
    replace(_canary("1 % leak", "inspects-leak-1", (0.0001, 0.023)), burst_s=60),
    _canary("10 % leak", "inspects-leak-10", (0.03, 0.17)),
    _canary("80 % leak", "inspects-leak-80", (0.71, 0.89)),
    _canary("fails open, idle", "inspects-fail-open", (0, 0), overrides=_CANARY_IDLE),
    _canary(
        "fails open under load",
        "inspects-fail-open",
        # The lab counts the packets of a large block as one, so the share depends on the host.
        (0.02, 1),
        overrides={**_CANARY, "traffic.block_bytes": 1448},
    ),
    _canary(
        "drops harmless flows",
        "inspects-drops-harmless",
        (0, 0),
        says="canary-allowed-blocked",
        overrides=_CANARY_IDLE,
    ),
    _canary(
        "decides late", "inspects-late", (0.2, 0.3), says="canary-late", overrides=_CANARY_IDLE
    ),
)

CASES: Final = (
    *SENT,
    *TRANSLATED,
    STORM,
    *CONNECTIONS,
    *UNITS,
    *CANARIES,
    *map(_at_half_the_nic, SENT),
    *CERTAIN,
    Case(
        name="through the firewall",
        scenario="bypass-reference",
        overrides={"device": {"path": "firewall"}, "pairs_count": 8},
        expected=Expected(bottleneck="firewall"),
    ),
    Case(
        name="bypass reference",
        scenario="bypass-reference",
        profile="bypass",
        overrides={"pairs_count": 8},
        expected=Expected(
            rate_ratio_of=("through the firewall", 1.4, 2.2), says="bypassed the firewall, as"
        ),
    ),
    Case(
        name="modes: IDPS off, alert, deny",
        scenario="inspection",
        overrides={"bursts_count": 1},
        question={
            "kind": "matrix",
            "switch": "idps",
            "modes": _modes("plain", "idps-alert", "idps-deny"),
        },
        expected=Expected(modes={"idps-alert": (0.87, 0.93), "idps-deny": (0.19, 0.25)}),
    ),
    Case(
        name="A/B: IDPS off, deny",
        scenario="inspection",
        overrides={"bursts_count": 2},
        question={
            "kind": "ab",
            "switch": "idps",
            "a": {"name": "plain"},
            "b": {"name": "idps-deny"},
        },
        expected=Expected(cost_ratio=(0.19, 0.25)),
    ),
    Case(
        name="accelerated networking off",
        scenario="accelerated-networking",
        profile="slow-nic",
        # The bytes in the sockets at its end are then a small part.
        burst_s=44,
        overrides={"bursts_count": 1},
        expected=Expected(bottleneck="client-nic"),
    ),
    Case(
        name="accelerated networking on",
        scenario="accelerated-networking",
        overrides={"bursts_count": 1},
        expected=Expected(rate_ratio_of=("accelerated networking off", 7.0, 13.0)),
    ),
    Case(
        name="HTTP, 1 MB replies at a rate",
        scenario="http-1mb",
        overrides=SEGMENTS_UNTOLD,
        expected=Expected(bottleneck="offered-load", share=(0.38, 0.42)),
    ),
    Case(
        name="HTTPS, 1 MB replies at a rate",
        scenario="https-1mb",
        overrides=SEGMENTS_UNTOLD,
        expected=Expected(bottleneck="offered-load", share=(0.38, 0.42)),
    ),
    Case(name="1 tunnel", scenario="tunnels-1", expected=Expected(share=(0.86, 0.97))),
    Case(
        name="8 tunnels",
        scenario="tunnels-8",
        expected=Expected(rate_ratio_of=("1 tunnel", 4.0, 6.0)),
    ),
    Case(
        name="128 KiB window over the path",
        scenario="window-sessions",
        testbed="path",
        profile="path-20ms",
        expected=Expected(bottleneck="window", product_megabytes=500 * 0.02 / 8),
    ),
    Case(
        name="sessions 1..16 of a 128 KiB window",
        scenario="window-sessions",
        testbed="path",
        question={
            "kind": "sweep",
            "axes": [{"field": "traffic.streams_count", "values": [1, 2, 4, 8, 16]}],
        },
        profile="path-20ms",
        expected=Expected(knee=(8, 8), trials_not_limited_by="firewall"),
    ),
    Case(
        name="pauses of an overloaded box",
        scenario="latency-under-load",
        profile="pauses",
        burst_s=44,
        overrides={"traffic.stream_bits_per_second": 250_000_000},
        expected=Expected(says="latency-spikes", pauses_within_s=1.0),
    ),
    Case(
        name="guard: probes lost by an overloaded box",
        scenario="latency-under-load",
        profile="pauses",
        burst_s=44,
        overrides={
            "lead_s": 10,
            "traffic.stream_bits_per_second": 250_000_000,
            "traffic.probe": {"before_s": 4},
            # TCP backs off in a pause, so some probes pass. The first pause may be at the start.
            "guards": ["probe_loss_ratio > 10%"],
        },
        expected=Expected(
            verdict="inconclusive", says="stopped-by-guard", completeness=(0.0, 0.95)
        ),
    ),
    Case(
        name="collapse above a load",
        scenario="collapse",
        profile="cliff",
        burst_s=12,
        expected=Expected(says="collapse", fall_within_s=2.0),
    ),
    Case(
        name="scale-out in five steps",
        scenario="native-64-flows",
        testbed="device",
        profile="scale-out",
        overrides={"pairs_count": 6, "traffic.streams_count": 8},
        question={"kind": "scaleout", "hold_s": 75, "settle_s": 15},
        burst_s=75,
        expected=Expected(
            steps_within_s=3.0, step_ratio=0.16, says="telemetry counted 1 to 6 units"
        ),
    ),
    Case(
        name="drill: one of two firewalls dies",
        scenario="native-64-flows",
        profile="active-standby",
        question={"kind": "drill", "switch": "firewalls", "state": "failover", "at_s": 15},
        burst_s=40,
        overrides={"traffic.streams_count": 8},
        expected=Expected(outage_within_s=(0.1, 0.2)),
    ),
    Case(
        name="drill: one of two that share flows dies",
        scenario="native-64-flows",
        profile="two-firewalls",
        question={"kind": "drill", "switch": "balanced", "state": "failover", "at_s": 15},
        burst_s=40,
        overrides={"pairs_count": 8, "traffic.streams_count": 4},
        expected=Expected(outage_within_s=(0.1, 0.2)),
    ),
    Case(
        name="drill: the other firewall knows no session",
        scenario="native-64-flows",
        profile="active-standby",
        question={"kind": "drill", "switch": "firewalls", "state": "failover-cold", "at_s": 15},
        burst_s=40,
        overrides={"traffic.streams_count": 8},
        expected=Expected(
            # In the first burst 23 s are missing.
            verdict="inconclusive",
            completeness=(0.5, 0.94),
            outage_within_s=(0.1, 0.2),
            says="32 of 32 sessions were cut",
        ),
    ),
    Case(
        name="more sessions than the device supports",
        scenario="native-64-flows",
        testbed="device",
        profile="session-limit",
        overrides={"pairs_count": 8, "traffic.streams_count": 8},
        burst_s=10,
        expected=Expected(
            verdict="inconclusive",
            completeness=(0.1, 0.6),
            lost_says="Connection timed out",
            told={"device_sessions_max_count": (30, 40)},
        ),
    ),
    Case(
        name="more connections a second than the device opens",
        scenario="native-64-flows",
        testbed="device",
        profile="connection-rate-limit",
        overrides={"pairs_count": 8, "traffic.streams_count": 8},
        burst_s=10,
        expected=Expected(verdict="inconclusive", completeness=(0.1, 0.94)),
    ),
    Case(
        name="packet rate at two packet sizes",
        scenario="native-1-flow",
        testbed="device",
        profile="cpu-bound",
        burst_s=10,
        overrides={
            "bursts_count": 1,
            "traffic.protocol": "udp",
            "traffic.stream_bits_per_second": 1_600_000_000,
        },
        question={
            "kind": "matrix",
            "modes": [
                {"name": "b700", "overrides": {"traffic.block_bytes": 700}},
                {"name": "b1400", "overrides": {"traffic.block_bytes": 1400}},
            ],
        },
        expected=Expected(modes={"b1400": (1.9, 2.1)}, told={"device_cpu_mean_ratio": (0.95, 1.0)}),
    ),
    Case(
        name="CPU of two devices in four services",
        burst_s=40,
        scenario="native-64-flows",
        testbed="boxes",
        profile="service-cef",
        overrides={
            "bursts_count": 1,
            "pairs_count": 4,
            "traffic.streams_count": 16,
            # With 64 flows over NICs of 10 Mbit/s up to one second of data is in flight at the end.
            "objective.residual_max_ratio": 0.05,
        },
        question={
            "kind": "matrix",
            "switch": "services",
            "modes": _modes(*(f"service-{name}" for name in SERVICES)),
        },
        expected=Expected(cpu_within=0.02),
    ),
    Case(
        name="two links: their sum and shares",
        # Both devices use one snmpd with counters up to one second old.
        burst_s=48,
        scenario="native-64-flows",
        testbed="links",
        profile="two-links",
        overrides={"pairs_count": 8, "traffic.streams_count": 16},
        expected=Expected(bottleneck="client-nic", shares_within=0.02),
    ),
)
