"""The cases: what is run in which profile, and what it must show because that plants it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broadside.lab.profiles import SERVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """A lab that several cases share; by itself 1:100 of eight 10 Gbit/s VMs behind a 48 Gbit/s
    device: four pairs fit, eight do not."""

    pairs_count: int = 8
    scale: int = 100
    nic_bits_per_second: int = 100_000_000
    firewall_bits_per_second: int = 480_000_000
    services: str | None = None  # of the server agents, beside iperf3
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that a witness tells
    # of, by name: interfaces of the firewall
    profile: str = "plain"  # that it stands in from the start


BEDS: Final[Mapping[str, Bed]] = {
    "range": Bed(services="http=8080 https=8443 ftp=2121"),
    # With a witness: an snmpd in the firewall's namespace.
    "device": Bed(devices={"fw": ("c0", "s0")}),
    # Two firewalls behind a balancer, whose links are witnessed one by one.
    "links": Bed(
        nic_bits_per_second=40_000_000,
        firewall_bits_per_second=800_000_000,
        devices={"fw-a": ("sa",), "fw-b": ("sb",)},
        profile="two-links",
    ),
    # Two firewalls whose processes read all that they forward, as a service would.
    "boxes": Bed(
        pairs_count=4,
        nic_bits_per_second=10_000_000,
        firewall_bits_per_second=200_000_000,
        devices={"fw-a": ("sa",), "fw-b": ("sb",)},
        profile="service-cef",
    ),
    # Another VM size: half the NIC, and its agents know it.
    "small": Bed(pairs_count=4, nic_bits_per_second=50_000_000, services="ftp=2121"),
    # One pair, 1:10 of a 5 Gbit/s VM; its path is 20 ms long, ten times the 2 ms it stands for, so
    # that a window of 128 KiB is to the lab's rate what it is to the real one over 2 ms.
    "path": Bed(
        pairs_count=1,
        scale=10,
        nic_bits_per_second=500_000_000,
        firewall_bits_per_second=900_000_000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a case, and each trial of its study, must show, because its profile plants it."""

    verdict: str = "pass"
    share: tuple[float, float] | None = None  # of its senders' NIC rates, low and high
    limiter: str | None = None
    trials_not_limited_by: str | None = None  # of a study: planted with room in every trial
    rate_ratio_of: tuple[str, float, float] | None = None  # of an earlier case: name, low, high
    says: str | None = None  # words of a finding or of the conclusion
    cost_ratio: tuple[float, float] | None = None  # A/B: low and high of b / a
    knee: tuple[float, float] | None = None
    product_megabytes: float | None = None  # the advice's bandwidth-delay product, within 15 %
    fall_within_s: float | None = None  # of the instant at which the device fell
    pauses_within_s: float | None = None  # each pause of the device is a spike, and nothing else is
    modes: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # rates to the first's
    steps_within_s: float | None = None  # each growth of the device is a step, and nothing else is
    step_ratio: float | None = None  # of the device's rate: what one adds, within 5 %
    # An outage by probes: within so much of its length, and of the instant that the device died
    outage_within_s: tuple[float, float] | None = None
    told: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # figures of the device
    # by their names, of the run or of every trial: low and high
    shares_within: float | None = None  # of what the kernel counted on each device
    cpu_within: float | None = None  # of what the kernel counted of each device's process; each
    # mode takes more than the one before
    completeness: tuple[float, float] = (0.95, 1.0)  # of the planned pair-seconds, of every trial
    lost_says: str | None = None  # words of what became of a pair that was not wholly measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a scenario in a profile, or a study over it."""

    name: str
    scenario: str
    bed: str = "range"
    profile: str = "plain"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    question: Mapping[str, Any] | None = None  # of a study
    burst_s: int = 12  # over 10, so that a ledger of whole seconds agrees to within the tolerance
    expected: Expected = Expected()


# What an engine that does not tell its segments' size leaves open of a ledger: 536-byte ones.
SEGMENTS_UNTOLD: Final[Mapping[str, Any]] = {"objective.residual_max_ratio": 0.1}

# lftp has no start gate: two cores start 4 x 64 segments some 100 ms apart.
LFTP: Final[Mapping[str, Any]] = {**SEGMENTS_UNTOLD, "objective.start_spread_max_s": 0.3}


HALF: Final = ", half the NIC"


def _modes(*names: str) -> list[Mapping[str, Any]]:
    return [{"name": name} for name in names]


SENT: Final = (  # on either VM size
    Case(name="native, 1 flow", scenario="native-1-flow", expected=Expected(share=(0.9, 1.0))),
    Case(
        name="native, 64 flows",
        scenario="native-64-flows",
        expected=Expected(limiter="client-nic"),
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


def _at_half_the_nic(case: Case) -> Case:
    """The same on the smaller VM size; what the NIC limits is half of what it was."""
    expected = case.expected
    if expected.rate_ratio_of is not None:
        base, low, high = expected.rate_ratio_of
        expected = replace(expected, rate_ratio_of=(f"{base}{HALF}", low, high))
    elif expected.limiter == "client-nic":
        expected = replace(expected, rate_ratio_of=(case.name, 0.45, 0.55))
    return replace(case, name=f"{case.name}{HALF}", bed="small", expected=expected)


CASES: Final = (
    *SENT,
    *map(_at_half_the_nic, SENT),
    Case(
        name="through the firewall",
        scenario="bypass-reference",
        overrides={"device": {"path": "firewall"}, "pairs_count": 8},
        expected=Expected(limiter="firewall"),
    ),
    Case(
        name="bypass reference",
        scenario="bypass-reference",
        profile="bypass",
        overrides={"pairs_count": 8},
        expected=Expected(
            rate_ratio_of=("through the firewall", 1.4, 2.2), says="bypassed, as planned"
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
        burst_s=44,  # what stands in the sockets at its end is then a small part
        overrides={"bursts_count": 1},
        expected=Expected(limiter="client-nic"),
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
        expected=Expected(limiter="offered-load", share=(0.38, 0.42)),
    ),
    Case(
        name="HTTPS, 1 MB replies at a rate",
        scenario="https-1mb",
        overrides=SEGMENTS_UNTOLD,
        expected=Expected(limiter="offered-load", share=(0.38, 0.42)),
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
        bed="path",
        profile="path-20ms",
        expected=Expected(limiter="window", product_megabytes=500 * 0.02 / 8),
    ),
    Case(
        name="sessions 1..16 of a 128 KiB window",
        scenario="window-sessions",
        bed="path",
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
        name="collapse above a load",
        scenario="collapse",
        profile="cliff",
        burst_s=12,
        expected=Expected(says="collapse", fall_within_s=2.0),
    ),
    Case(
        name="scale-out in five steps",
        scenario="native-64-flows",
        bed="device",
        profile="scale-out",
        overrides={"pairs_count": 6, "traffic.streams_count": 8},
        question={"kind": "scaleout", "hold_s": 75, "settle_s": 15},
        burst_s=75,
        expected=Expected(
            steps_within_s=3.0, step_ratio=0.16, says="a witness counted 1 to 6 units"
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
            verdict="inconclusive",  # of the first burst 23 s are missing
            completeness=(0.5, 0.94),
            outage_within_s=(0.1, 0.2),
            says="32 of 32 sessions were cut",
        ),
    ),
    Case(
        name="more sessions than the device has room for",
        scenario="native-64-flows",
        bed="device",
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
        bed="device",
        profile="connection-rate-limit",
        overrides={"pairs_count": 8, "traffic.streams_count": 8},
        burst_s=10,
        expected=Expected(verdict="inconclusive", completeness=(0.1, 0.94)),
    ),
    Case(
        name="packets a second, whatever their size",
        scenario="native-1-flow",
        bed="device",
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
        bed="boxes",
        profile="service-cef",
        overrides={
            "bursts_count": 1,
            "pairs_count": 4,
            "traffic.streams_count": 16,
            # 64 flows over NICs of 10 Mbit/s leave up to a second's bytes on the way at the end.
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
        burst_s=48,  # both ask one snmpd, whose counters are up to a second older to the second
        scenario="native-64-flows",
        bed="links",
        profile="two-links",
        overrides={"pairs_count": 8, "traffic.streams_count": 16},
        expected=Expected(limiter="client-nic", shares_within=0.02),
    ),
)
