"""Profiles to put the lab's device and path into a known state for tests.

For each profile the correct result of an analysis is known, for example a firewall that is slower
when it inspects traffic, a slow NIC, a longer path, a cliff or a bypass.

A profile is applied on top of the lab's rates and replaces the previous one. ``plain`` is the lab
as it was built. Besides ``tc`` settings, a profile uses at most one process (for cliffs or
pauses) and one delay process. Both run in the lab's namespaces, so that ``down`` can end them.
"""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Role
from broadside.lab import device_units, network, topology
from broadside.lab.delay import delay_argv, start_delay
from broadside.lab.device_units import UNITS_MAX
from broadside.lab.errors import LabBroken, LabMisconfigured
from broadside.lab.inspection import inspector_argv, start_inspection
from broadside.lab.namespaces import (
    detach,
    inside,
    is_module,
    list_namespaces,
    list_processes,
    module_argv,
    run_batch,
    run_ip,
    write_sysctls,
)
from broadside.lab.topology import Lab

# Link between the two switches to bypass the firewall.
WAY_ROUND: Final = "around"
STOP_TIMEOUT_S: Final = 5.0
NEW_SESSION: Final = 'iifname "c0" tcp flags & (syn | ack) == syn'
# Rules for a firewall that resets sessions when it did not see their first packet.
KNOWN_ONLY: Final = (
    f"tcp flags & syn == syn add @known {{ {topology.FLOW} }}",
    f"tcp flags & (syn | rst) == 0 {topology.FLOW} != @known counter reject with tcp reset",
)


# Time for which a limit of new sessions can be exceeded, because generators share a busy machine.
LIMIT_BURST_S: Final = 0.1
_RESET: Final = {"drop": "drop", "reset": "reject with tcp reset"}


def new_limit(per_second: int, verdict: str) -> tuple[str, ...]:
    """Return the rules of a device that opens a number of sessions per second.

    Args:
        per_second: Number of sessions.
        verdict: What happens to others, "drop" or "reset".

    Returns:
        Rules of nftables, one each.
    """
    burst = max(10, round(per_second * LIMIT_BURST_S))
    limit = f"limit rate over {per_second}/second burst {burst} packets"
    return (f"{NEW_SESSION} {limit} counter {_RESET[verdict]}",)


def held_limit(verdict: str) -> tuple[str, ...]:
    """Return the rules of a device with room for the sessions of the set ``held``.

    A session that cannot be added is the one too many. ("ct count" also counts sessions that have
    ended, until later ones remove them from its list. The next trial of a search would be short.)

    Args:
        verdict: What happens to others, "drop" or "reset".
    """
    ended = "tcp flags & (fin | rst) != 0"
    return (
        f"{ended} delete @held {{ {topology.FLOW} }} delete @held {{ {topology.FLOW_BACK} }}",
        f"{NEW_SESSION} add @held {{ {topology.FLOW} }} accept",
        f"{NEW_SESSION} counter {_RESET[verdict]}",
    )


# Canaries of the signatures `url`, `et-id-check-udp`, `port` and `port-udp`, as the first 16 bytes
# of payload (TCP with timestamps) and as a port.
_FORBIDDEN_URL: Final = f"tcp dport 5198 @th,256,128 0x{b'GET /broadside-f'.hex()}"
_BLOCKED: Final = (
    f"{_FORBIDDEN_URL} counter drop",
    f"udp dport 5198 @th,64,128 0x{b'uid=0(root) gid='.hex()} counter drop",
    "meta l4proto { tcp, udp } th dport 5199 counter drop",
)
_FAIL_OPEN: Final = ("limit rate over 2000/second burst 2000 packets counter accept", *_BLOCKED)
# Number from 0 to 999 for each flow, also for packets that are sent again.
_CANARY_CHANCE: Final = (
    "meta l4proto { tcp, udp } th dport 5198-5199 jhash ip saddr . th sport mod 1000"
)


def leak_rules(ratio: float) -> tuple[str, ...]:
    """Return rules that block canaries, except for a share of their connections.

    Args:
        ratio: Share that passes, with a resolution of 1/1000.
    """
    passed = f"{_CANARY_CHANCE} < {round(ratio * 1000)} counter accept"
    return (passed, *_BLOCKED) if ratio else _BLOCKED


@dataclass(frozen=True, slots=True, kw_only=True)
class LabProfile:
    """State of the lab. Ratios are relative to the lab's rates.

    Attributes:
        description: Description as a sentence.
        firewall_ratio: Rate of the firewall.
        nic_ratio: Rate of every host.
        cliff_ratio: Load above which the firewall collapses, relative to its rate.
        cliff_to_ratio: Rate after the collapse.
        cliff_after_s: Time in seconds that the load needs to be above the limit.
        table_count: Entries of the session table above which the rate falls to cliff_to_ratio.
        pause_s: Duration of a pause in seconds, in which almost nothing is forwarded.
        pause_every_s: Seconds from the start of a pause to the next.
        delay_s: Delay to add in each direction, in seconds.
        bypass: Whether hosts can reach each other without the firewall.
        grow_after_s: Seconds of load above GROW_LOAD_RATIO until the next step.
        grow_by_ratio: Increase of the rate per step, up to the full rate.
        packets_per_second: Packets that the CPU can forward in each direction.
        rules: nft rules for the firewall or each twin, applied before its own rules.
        held_count: Size of the set ``held`` in these rules.
        translates: Whether the firewall translates the addresses of clients (NAT).
        twins: Share of flows for each of two firewalls ("a" and "b") with half the rate.
        inspects: Number of times that each twin's process reads every byte.
        fails_s: Seconds that the first twin is down before the other takes over.
        shrink_after_s: Seconds of low load after a high load until the first twin takes all flows.
        units: Rate of each unit that translates addresses, relative to UNIT_RATIO of the firewall's
            rate. A negative number drops the unit's flows, and 0 gives it no new flows. Another
            profile with units moves only new flows.
    """

    description: str
    firewall_ratio: float = 1.0
    nic_ratio: float = 1.0
    cliff_ratio: float | None = None
    cliff_to_ratio: float = 1.0
    cliff_after_s: float = 0.0
    table_count: int | None = None
    pause_s: float = 0.0
    pause_every_s: float = 0.0
    delay_s: float = 0.0
    bypass: bool = False
    grow_after_s: float = 0.0
    grow_by_ratio: float = 0.0
    packets_per_second: int | None = None
    rules: tuple[str, ...] = ()
    held_count: int | None = None
    translates: bool = False
    twins: Mapping[str, int] = field(default_factory=dict)
    inspects: Mapping[str, int] = field(default_factory=dict)
    fails_s: float = 0.0
    shrink_after_s: float = 0.0
    units: tuple[float, ...] = ()


# Rate of a unit, relative to the firewall's rate.
UNIT_RATIO: Final = 1 / UNITS_MAX
# Reads per byte for each twin.
SERVICES: Final = {"cef": (0, 0), "acl": (15, 8), "zpf": (40, 20), "log": (80, 40)}

PROFILES: Final[Mapping[str, LabProfile]] = {
    "plain": LabProfile(description="the lab as it was built"),
    "idps-alert": LabProfile(
        description="a firewall that inspects and reports: 90 % of its rate", firewall_ratio=0.9
    ),
    "idps-deny": LabProfile(
        description="a firewall that inspects and blocks: 22 % of its rate", firewall_ratio=0.22
    ),
    "slow-nic": LabProfile(
        description="accelerated networking off: NICs at 10 % of the rate that is known of them",
        nic_ratio=0.1,
    ),
    "small-vm": LabProfile(description="a VM size with half the NIC's rate", nic_ratio=0.5),
    "cliff": LabProfile(
        description="a device that falls to 30 % of its rate after 3 s of a load above 70 % of it",
        cliff_ratio=0.7,
        cliff_to_ratio=0.3,
        cliff_after_s=3.0,
    ),
    "pauses": LabProfile(
        description="an overloaded box: every 5 s it forwards next to nothing for 1.5 s",
        pause_s=1.5,
        pause_every_s=5.0,
    ),
    "path-2ms": LabProfile(description="a path with a round trip of 2 ms", delay_s=0.001),
    "path-20ms": LabProfile(description="a path with a round trip of 20 ms", delay_s=0.01),
    **{
        f"service-{name}": LabProfile(
            description=f"two firewalls; their processes read each byte {first} and {second} times",
            twins={"a": 1, "b": 1},
            inspects={"a": first, "b": second},
        )
        for name, (first, second) in SERVICES.items()
    },
    "bypass": LabProfile(
        description="a direct way between the subnets, round the firewall", bypass=True
    ),
    "scale-out": LabProfile(
        description="a device that starts at 20 % of its rate and, loaded, adds 16 % every 10 s",
        firewall_ratio=0.2,
        grow_after_s=10.0,
        grow_by_ratio=0.16,
    ),
    "two-firewalls": LabProfile(
        description="two firewalls of half the rate behind a balancer, flows spread evenly",
        twins={"a": 1, "b": 1},
    ),
    "two-links": LabProfile(
        description="two links behind a balancer; the first one gets 70 % of the flows",
        twins={"a": 7, "b": 3},
    ),
    "scale-in": LabProfile(
        description="two units; one is removed after 5 s of little load. The other knows only its "
        "own sessions and resets the rest",
        twins={"a": 1, "b": 1},
        rules=KNOWN_ONLY,
        shrink_after_s=5.0,
    ),
    "active-standby": LabProfile(
        description="two firewalls of half the rate; the first one forwards all traffic",
        twins={"a": 1},
    ),
    "failover": LabProfile(
        description="two firewalls; the first fails, and after 1.5 s the other forwards all",
        twins={"b": 1},
        fails_s=1.5,
    ),
    "failover-cold": LabProfile(
        description="as failover, but the other has no session table, and resets all sessions",
        twins={"b": 1},
        fails_s=1.5,
        rules=KNOWN_ONLY,
    ),
    **{
        f"units-{count}": LabProfile(
            description=f"{count} units with an address each, flows spread by hash",
            units=(1.0,) * count,
        )
        for count in (2, 3, 4, 5, 8, 16)
    },
    "units-4-slow": LabProfile(
        description="four units with an address each, the first one at half its rate",
        units=(0.5, 1.0, 1.0, 1.0),
    ),
    "units-4-left": LabProfile(
        description="as units-4, but the last unit has left and its flows are dropped",
        units=(1.0, 1.0, 1.0, -1.0),
    ),
    "units-4-drained": LabProfile(
        description="as units-4, but the last unit gets no new flows", units=(1.0, 1.0, 1.0, 0.0)
    ),
    "session-limit": LabProfile(
        description="a device with room for 40 sessions; it drops the first packet of others",
        rules=(f"{NEW_SESSION} ct count over 40 counter drop",),
    ),
    "connection-rate-limit": LabProfile(
        description="a device that opens 10 sessions a second, and drops any above this",
        rules=(f"{NEW_SESSION} limit rate over 10/second burst 10 packets counter drop",),
    ),
    **{
        f"connections-{count}{suffix}": LabProfile(
            description=f"a device that opens {count:,} sessions a second; {verdict} for others",
            rules=new_limit(count, verdict),
        )
        for count in (500, 1000, 2000)
        for suffix, verdict in (("", "drop"), ("-reset", "reset"))
    },
    **{
        f"held-5000{suffix}": LabProfile(
            description=f"a device with room for 5,000 sessions; {verdict} for others",
            rules=held_limit(verdict),
            held_count=5000,
        )
        for suffix, verdict in (("", "drop"), ("-reset", "reset"))
    },
    "nat": LabProfile(
        description="a device that translates the addresses of clients (NAT)", translates=True
    ),
    "firewall-nat": LabProfile(
        description="a firewall with NAT that inspects: 22 % of its rate",
        translates=True,
        firewall_ratio=0.22,
    ),
    **{
        f"table-slow{suffix}": LabProfile(
            description=f"a device that falls to {percent} % of its rate while its table has over "
            "1,500 sessions",
            table_count=1500,
            cliff_to_ratio=percent / 100,
        )
        for percent, suffix in ((40, ""), (50, "-50"), (60, "-60"), (75, "-75"))
    },
    **{
        f"inspects-leak-{share}": LabProfile(
            description=f"a device that blocks canaries, but lets {share} % of them pass",
            rules=leak_rules(share / 100),
        )
        for share in (0, 1, 10, 80)
    },
    "inspects-fail-open": LabProfile(
        description="a device that blocks canaries, and passes packets above 2,000 a second unseen",
        rules=_FAIL_OPEN,
    ),
    "units-4-fail-open": LabProfile(
        description="as units-4 and inspects-fail-open at the same time",
        units=(1.0,) * 4,
        rules=_FAIL_OPEN,
    ),
    "inspects-drops-harmless": LabProfile(
        description="a device that blocks canaries, and 20 % of their harmless twins",
        rules=(f"{_CANARY_CHANCE} < 200 counter drop", *_BLOCKED),
    ),
    "inspects-late": LabProfile(
        description="a device that cuts a forbidden flow, but only after the first answer to it",
        rules=(
            f"{_FORBIDDEN_URL} ct mark set 3",
            f"tcp sport 5198 ct mark 3 @th,256,64 0x{b'HTTP/1.1'.hex()} accept",
            "tcp sport 5198 ct mark 3 ip length > 52 counter drop",
            *_BLOCKED[1:],
        ),
    ),
    "cpu-bound": LabProfile(
        description="a device with a CPU that forwards 4,000 packets a second of any size",
        packets_per_second=4000,
        rules=("limit rate over 4000/second burst 400 packets counter drop",),
    ),
}


def apply(lab: Lab, name: str) -> LabProfile:
    """Apply a profile and replace the previous one.

    Args:
        lab: The lab.
        name: Name of the profile.

    Returns:
        The profile with its rules and rates.

    Raises:
        LabMisconfigured: The name is unknown, or the lab is on plain loopback.
        LabBroken: A command failed.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise LabMisconfigured(f"profile {name!r}: there are {', '.join(PROFILES)}")
    if lab.firewall_namespace is None:
        raise LabMisconfigured("this is plain loopback: it has no device to put into a state")
    if profile.fails_s:
        _fail_over(lab, profile)
        return profile
    if profile.units and device_units.has_units(lab):
        _set_units(lab, profile)
        return profile
    device_units.set_units(lab, ())
    inspected = _stop(lab)
    # If only the inspection has changed, we can use the two firewalls again.
    if inspected and profile.inspects:
        start_inspection(lab, profile.inspects)
        return profile
    _set_bypass(lab, there=profile.bypass)
    _set_twins(lab, profile)
    start_inspection(lab, profile.inspects)
    twins = topology.twin_namespaces(lab.spec.prefix) if profile.twins else ()
    rules = () if twins else profile.rules
    run_batch(
        topology.limits_batch(
            lab.firewall_namespace,
            rules,
            translates=profile.translates,
            held_count=profile.held_count,
        )
    )
    for twin in twins:
        run_batch(topology.limits_batch(twin, profile.rules))
    network.set_nic_rate(lab, lab.hosts, _scaled(lab.spec.nic_bits_per_second, profile.nic_ratio))
    network.set_firewall_rate(
        lab, _scaled(lab.spec.firewall_bits_per_second, profile.firewall_ratio)
    )
    if profile.units:
        _set_units(lab, profile)
    if profile.delay_s:
        start_delay(lab, profile.delay_s)
    moves = (profile.pause_s, profile.grow_after_s, profile.shrink_after_s)
    if profile.cliff_ratio is not None or profile.table_count is not None or any(moves):
        _start_process(lab, name)
    return profile


def falls(lab: Lab) -> tuple[float, ...]:
    """Return the times in epoch seconds when the firewall collapsed, paused, grew or failed."""
    path = falls_path(lab)
    return tuple(map(float, path.read_text().split())) if path.exists() else ()


def falls_path(lab: Lab) -> Path:
    """Return the path to the file with these times, one per line."""
    return lab.path / "falls"


def note_fall(lab: Lab) -> None:
    """Append the current time to the file."""
    with falls_path(lab).open("a") as file:
        file.write(f"{time.time():.3f}\n")


def _scaled(bits_per_second: int | None, ratio: float) -> int | None:
    return None if bits_per_second is None else max(100_000, round(bits_per_second * ratio))


# What a profile leaves running ------------------------------------------------------------------


def _start_process(lab: Lab, name: str) -> None:
    falls_path(lab).unlink(missing_ok=True)
    with inside(lab.firewall_namespace):
        detach(
            [*module_argv("broadside.lab.profile_process", lab.spec.prefix), str(lab.path), name]
        )


def _stop(lab: Lab) -> bool:
    """Stop the processes of the previous profile and reset the switch after a delay.

    Returns whether an inspection was running.
    """
    inspectors = [inspector_argv(lab, letter) for letter in topology.TWIN_LETTERS]
    inspected = False
    end_s = time.monotonic() + STOP_TIMEOUT_S
    while True:
        processes = [
            process
            for process in list_processes()
            if is_module(process, "broadside.lab.profile_process", lab.spec.prefix)
            or process.arguments[:1] in (delay_argv(lab), *inspectors)
        ]
        inspected |= any(process.arguments[:1] in inspectors for process in processes)
        pids = [process.pid for process in processes]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not pids:
            break
        if time.monotonic() > end_s:
            raise LabBroken(f"lab {lab.spec.prefix}: processes {pids} do not end; run lab down")
        time.sleep(0.02)
    switch = topology.switch_namespace(lab.spec.prefix, Role.SERVER)
    ports = topology.switch_ports(lab.spec)[switch]
    run_ip(switch, *(f"link set dev {port} master br0" for port in ports))
    return inspected


def _set_twins(lab: Lab, profile: LabProfile) -> None:
    """Create two firewalls behind the first one as balancer, or remove them."""
    prefix = lab.spec.prefix
    balancer, twins = topology.firewall_namespace(prefix), topology.twin_namespaces(prefix)
    there = [name for name in twins if name in list_namespaces(prefix)]
    rules = [
        f"from all iif {role.value[0]}0 lookup {table}"
        for role, table in topology.TWIN_TABLES.items()
    ]
    if there:
        letters = topology.TWIN_LETTERS
        cables = [f"link delete {side}{letter}" for side in "cs" for letter in letters]
        for line in [*(f"rule delete {rule}" for rule in rules), *cables]:
            # This might not exist, if the setup was not completed.
            with contextlib.suppress(LabBroken):
                run_ip(balancer, line)
        run_ip(None, *(f"netns delete {name}" for name in there))
    if not profile.twins:
        return
    run_ip(None, *(f"netns add {name}" for name in twins))
    for name in twins:
        write_sysctls(name, topology.sysctls(lab.spec, balancer))
    for batch in topology.twin_batches(lab.spec, _scaled(lab.spec.firewall_bits_per_second, 0.5)):
        run_batch(batch)
    # We use addresses and ports for the hash.
    write_sysctls(balancer, {"ipv4/fib_multipath_hash_policy": "1"})
    run_ip(balancer, *topology.twin_routes(profile.twins), *(f"rule add {rule}" for rule in rules))


def _set_units(lab: Lab, profile: LabProfile) -> None:
    """Make the firewall a device of units that translate source addresses."""
    firewall = lab.spec.firewall_bits_per_second
    device_units.set_units(
        lab,
        [
            device_units.DeviceUnit(
                number=number,
                bits_per_second=_scaled(firewall, UNIT_RATIO * (abs(ratio) or 1)),
                takes_flows=ratio > 0,
                carries=ratio >= 0,
            )
            for number, ratio in enumerate(profile.units, 1)
        ],
    )


def spread(lab: Lab, twins: Mapping[str, int]) -> None:
    """Set the share of flows that the balancer sends to each twin.

    Args:
        lab: The lab.
        twins: Share of flows by the letter of the twin.
    """
    run_ip(topology.firewall_namespace(lab.spec.prefix), *topology.twin_routes(twins))


def _fail_over(lab: Lab, profile: LabProfile) -> None:
    """Take the first firewall down, wait, then let the other take over."""
    prefix = lab.spec.prefix
    dies, takes_over = topology.twin_namespaces(prefix)
    if dies not in list_namespaces(prefix):
        raise LabMisconfigured(
            "profile failover: there is no second firewall; apply two-firewalls or active-standby"
        )
    run_batch(topology.limits_batch(takes_over, profile.rules))
    falls_path(lab).unlink(missing_ok=True)
    run_ip(dies, "link set c0 down", "link set s0 down")
    note_fall(lab)
    time.sleep(profile.fails_s)
    spread(lab, profile.twins)
    note_fall(lab)


def _set_bypass(lab: Lab, *, there: bool) -> None:
    """Create or remove the link between the two switches and the routes that use it."""
    spec = lab.spec
    switches = {role: topology.switch_namespace(spec.prefix, role) for role in Role}
    client_side = switches[Role.CLIENT]
    try:
        run_ip(client_side, f"link delete {WAY_ROUND}")
    except LabBroken as error:
        if "Cannot find device" not in str(error):
            raise
    networks = {Role.CLIENT: topology.SERVER_NETWORK, Role.SERVER: topology.CLIENT_NETWORK}
    if there:
        run_ip(
            client_side,
            f"link add {WAY_ROUND} mtu {spec.mtu} type veth "
            f"peer name {WAY_ROUND} netns {switches[Role.SERVER]} mtu {spec.mtu}",
        )
        for switch in switches.values():
            run_ip(switch, f"link set dev {WAY_ROUND} master br0 up")
    for host in lab.hosts:
        text = f"route {'replace' if there else 'flush'} {networks[host.role]}/16"
        if there:
            text += f" dev eth0 initcwnd {spec.initcwnd} congctl {spec.congestion}"
        run_ip(host.namespace, text)
