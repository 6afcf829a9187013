"""States that the lab's device and path can be put into, each with a truth that an analysis is to
find: a firewall that inspects and is slower for it, a slow NIC, a longer path, a cliff,
a way round the firewall.

A profile is applied on top of the lab's own rates and replaced by the next; ``plain`` is the lab
as it was built. What a profile needs beside ``tc`` settings is one *keeper* process (cliff,
pauses) and one delay process, both in the lab's namespaces, so that ``down`` ends them as well.
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
from broadside.lab import network, topology
from broadside.lab.delay import delay_argv, start_delay
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

WAY_ROUND: Final = "around"  # the cable between the two switches that bypasses the firewall
STOP_TIMEOUT_S: Final = 5.0
NEW_SESSION: Final = 'iifname "c0" tcp flags & (syn | ack) == syn'
KNOWN_ONLY: Final = (  # a firewall that resets sessions which it did not see begin
    f"tcp flags & syn == syn add @known {{ {topology.FLOW} }}",
    f"tcp flags & (syn | rst) == 0 {topology.FLOW} != @known counter reject with tcp reset",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One state. Ratios are of the lab's own rates."""

    says: str  # what it stands for, in a sentence
    firewall_ratio: float = 1.0
    nic_ratio: float = 1.0  # of every host
    cliff_ratio: float | None = None  # load, of the firewall's rate, above which it collapses
    cliff_to_ratio: float = 1.0  # what is left of the rate then
    cliff_after_s: float = 0.0  # for which the load must have been above it
    pause_s: float = 0.0  # for which the firewall forwards next to nothing
    pause_every_s: float = 0.0  # from the start of one pause to the next
    delay_s: float = 0.0  # added to the path each way
    bypass: bool = False  # hosts reach each other without the firewall
    grow_after_s: float = (
        0.0  # of load above GROW_LOAD_RATIO, from one step of the rate to the next
    )
    grow_by_ratio: float = 0.0  # of the lab's rate: one step, until it is whole
    packets_per_second: int | None = None  # that its CPU forwards, each way
    rules: tuple[str, ...] = ()  # nft, of the firewall, or of each twin, before its own
    twins: Mapping[str, int] = field(default_factory=dict)  # two firewalls of half its rate, "a"
    # and "b", and the share of flows that each gets
    inspects: Mapping[str, int] = field(default_factory=dict)  # twins whose process reads each
    # byte so many times
    fails_s: float = 0.0  # for which the first twin is dead before the other takes all
    shrink_after_s: float = 0.0  # of little load after much: the first twin takes all


SERVICES: Final = {"cef": (0, 0), "acl": (15, 8), "zpf": (40, 20), "log": (80, 40)}  # by twin

PROFILES: Final[Mapping[str, Profile]] = {
    "plain": Profile(says="the lab as it was built"),
    "idps-alert": Profile(
        says="a firewall that inspects and reports: 90 % of its rate", firewall_ratio=0.9
    ),
    "idps-deny": Profile(
        says="a firewall that inspects and blocks: 22 % of its rate", firewall_ratio=0.22
    ),
    "slow-nic": Profile(
        says="accelerated networking off: NICs at 10 % of the rate that is known of them",
        nic_ratio=0.1,
    ),
    "small-vm": Profile(says="a VM size with half the NIC's rate", nic_ratio=0.5),
    "cliff": Profile(
        says="a device that falls to 30 % of its rate after 3 s of a load above 70 % of it",
        cliff_ratio=0.7,
        cliff_to_ratio=0.3,
        cliff_after_s=3.0,
    ),
    "pauses": Profile(
        says="an overloaded box: every 5 s it forwards next to nothing for 1.5 s",
        pause_s=1.5,
        pause_every_s=5.0,
    ),
    "path-2ms": Profile(says="a path with a round trip of 2 ms", delay_s=0.001),
    "path-20ms": Profile(says="a path with a round trip of 20 ms", delay_s=0.01),
    **{
        f"service-{name}": Profile(
            says=f"two firewalls whose processes read each byte {first} and {second} times",
            twins={"a": 1, "b": 1},
            inspects={"a": first, "b": second},
        )
        for name, (first, second) in SERVICES.items()
    },
    "bypass": Profile(says="a direct way between the subnets, round the firewall", bypass=True),
    "scale-out": Profile(
        says="a device that starts at 20 % of its rate and, loaded, adds 16 % every 10 s",
        firewall_ratio=0.2,
        grow_after_s=10.0,
        grow_by_ratio=0.16,
    ),
    "two-firewalls": Profile(
        says="two firewalls of half the rate behind a balancer, flows spread evenly",
        twins={"a": 1, "b": 1},
    ),
    "two-links": Profile(
        says="two links behind a balancer, of which flows take the first seven times of ten",
        twins={"a": 7, "b": 3},
    ),
    "scale-in": Profile(
        says="two units, of which one goes after 5 s of little load; the other knows only its own "
        "sessions, and resets the rest",
        twins={"a": 1, "b": 1},
        rules=KNOWN_ONLY,
        shrink_after_s=5.0,
    ),
    "active-standby": Profile(
        says="two firewalls of half the rate, of which the first carries all", twins={"a": 1}
    ),
    "failover": Profile(
        says="of two firewalls the first dies, and after 1.5 s the other carries all",
        twins={"b": 1},
        fails_s=1.5,
    ),
    "failover-cold": Profile(
        says="as failover, but the other knows none of the sessions, and resets them",
        twins={"b": 1},
        fails_s=1.5,
        rules=KNOWN_ONLY,
    ),
    "session-limit": Profile(
        says="a device with room for 40 sessions: it drops the first packet of every further one",
        rules=(f"{NEW_SESSION} ct count over 40 counter drop",),
    ),
    "connection-rate-limit": Profile(
        says="a device that opens 10 sessions a second, and drops what is asked beyond",
        rules=(f"{NEW_SESSION} limit rate over 10/second burst 10 packets counter drop",),
    ),
    "cpu-bound": Profile(
        says="a device whose CPU forwards 4,000 packets a second, however large they are",
        packets_per_second=4000,
        rules=("limit rate over 4000/second burst 400 packets counter drop",),
    ),
}


def apply(lab: Lab, name: str) -> Profile:
    """Put the lab into a profile, whatever it was in before.

    Raises :class:`LabMisconfigured` for an unknown name or plain loopback, :class:`LabBroken`.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise LabMisconfigured(f"profile {name!r}: there are {', '.join(PROFILES)}")
    if lab.firewall_namespace is None:
        raise LabMisconfigured("this is plain loopback: it has no device to put into a state")
    if profile.fails_s:
        _fail_over(lab, profile)
        return profile
    inspected = _stop(lab)
    if inspected and profile.inspects:  # another service of the same two firewalls
        start_inspection(lab, profile.inspects)
        return profile
    _set_bypass(lab, there=profile.bypass)
    _set_twins(lab, profile)
    start_inspection(lab, profile.inspects)
    twins = topology.twin_namespaces(lab.spec.prefix) if profile.twins else ()
    run_batch(topology.limits_batch(lab.firewall_namespace, () if twins else profile.rules))
    for twin in twins:
        run_batch(topology.limits_batch(twin, profile.rules))
    network.set_nic_rate(lab, lab.hosts, _scaled(lab.spec.nic_bits_per_second, profile.nic_ratio))
    network.set_firewall_rate(
        lab, _scaled(lab.spec.firewall_bits_per_second, profile.firewall_ratio)
    )
    if profile.delay_s:
        start_delay(lab, profile.delay_s)
    moves = (profile.pause_s, profile.grow_after_s, profile.shrink_after_s)
    if profile.cliff_ratio is not None or any(moves):
        _start_keeper(lab, name)
    return profile


def falls(lab: Lab) -> tuple[float, ...]:
    """When the firewall fell off its cliff, paused, grew, died or was replaced, epoch s."""
    path = falls_path(lab)
    return tuple(map(float, path.read_text().split())) if path.exists() else ()


def falls_path(lab: Lab) -> Path:
    """Where they are written, one a line."""
    return lab.path / "falls"


def note_fall(lab: Lab) -> None:
    """Write down that something of the device changed now."""
    with falls_path(lab).open("a") as file:
        file.write(f"{time.time():.3f}\n")


def _scaled(bits_per_second: int | None, ratio: float) -> int | None:
    return None if bits_per_second is None else max(100_000, round(bits_per_second * ratio))


# What a profile leaves running ------------------------------------------------------------------


def _start_keeper(lab: Lab, name: str) -> None:
    falls_path(lab).unlink(missing_ok=True)
    with inside(lab.firewall_namespace):
        detach([*module_argv("broadside.lab.keeper", lab.spec.prefix), str(lab.path), name])


def _stop(lab: Lab) -> bool:
    """End the last profile's processes, and undo what the delay did to the switch.

    Whether there was an inspection among them.
    """
    inspectors = [inspector_argv(lab, letter) for letter in topology.TWIN_LETTERS]
    inspected = False
    end_s = time.monotonic() + STOP_TIMEOUT_S
    while True:
        processes = [
            process
            for process in list_processes()
            if is_module(process, "broadside.lab.keeper", lab.spec.prefix)
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


def _set_twins(lab: Lab, profile: Profile) -> None:
    """Lay two firewalls behind the first, which balances, or take them away."""
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
            with contextlib.suppress(LabBroken):  # half laid: this one was not there yet
                run_ip(balancer, line)
        run_ip(None, *(f"netns delete {name}" for name in there))
    if not profile.twins:
        return
    run_ip(None, *(f"netns add {name}" for name in twins))
    for name in twins:
        write_sysctls(name, topology.sysctls(lab.spec, balancer))
    for batch in topology.twin_batches(lab.spec, _scaled(lab.spec.firewall_bits_per_second, 0.5)):
        run_batch(batch)
    write_sysctls(balancer, {"ipv4/fib_multipath_hash_policy": "1"})  # addresses and ports
    run_ip(balancer, *topology.twin_ways(profile.twins), *(f"rule add {rule}" for rule in rules))


def spread(lab: Lab, twins: Mapping[str, int]) -> None:
    """Let the balancer spread flows over these twins, by their shares."""
    run_ip(topology.firewall_namespace(lab.spec.prefix), *topology.twin_ways(twins))


def _fail_over(lab: Lab, profile: Profile) -> None:
    """The first of two firewalls dies; the other takes over when it was dead for so long."""
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
    """Lay or remove the cable between the two switches, and the routes that lead over it."""
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
        way = f"route {'replace' if there else 'flush'} {networks[host.role]}/16"
        if there:
            way += f" dev eth0 initcwnd {spec.initcwnd} congctl {spec.congestion}"
        run_ip(host.namespace, way)
