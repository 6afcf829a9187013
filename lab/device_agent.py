"""The lab's firewall as a device that tells of itself: a real snmpd in its namespace, over the
management network.

Its interfaces are the kernel's own. CPU, sessions and units are those of the profile: a share of
the rate that the profile gives it, the kernel's count of connections, a unit for each growth.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from broadside.lab import profiles
from broadside.lab.inspection import inspector_argv
from broadside.lab.snmp_agent import Figures, SnmpAgent, witness_entry
from broadside.lab.topology import TWIN_LETTERS, Lab, firewall_namespace, management_address

TREE: Final = "1.3.6.1.4.1.8072.9999.9999"  # netSnmpPlaypen
CPU, SESSIONS, UNITS = (f"{TREE}.{number}.0" for number in (1, 2, 3))
PROFILE: Final = f"""[lab]
mib = "the lab's own, under NET-SNMP-MIB::netSnmpPlaypen"
read = [
    {{ quantity = "cpu_ratio", oid = "{CPU}", scale = 0.01 }},
    {{ quantity = "sessions_count", oid = "{SESSIONS}" }},
    {{ quantity = "units_count", oid = "{UNITS}" }},
]
"""
BOXES: Final = dict(zip(TWIN_LETTERS, (f"{TREE}.4.{n}.0" for n in (1, 2)), strict=True))  # CPU
BOX_PROFILE: Final = """[box-{letter}]
mib = "the CPU of one of the lab's two firewalls, of a core of which its process makes use"
read = [{{ quantity = "cpu_ratio", oid = "{oid}", scale = 0.0001, over_s = 1 }}]
"""
CONNECTIONS: Final = {"file": "/proc/net/nf_conntrack", "holding": "ESTABLISHED"}
PORT: Final = 161


def firewall_agent(lab: Lab, folder: Path, profile: str = "plain") -> SnmpAgent:
    """The agent of a lab's firewall in a profile; start it, and :func:`follow` the next ones."""
    return SnmpAgent(
        folder,
        address=str(management_address(lab.spec, "firewall")),
        port=PORT,
        namespace=firewall_namespace(lab.spec.prefix),
        figures=figures_of(lab, profile),
    )


def follow(agent: SnmpAgent, lab: Lab, profile: str) -> None:
    """Let the agent tell of a profile that was applied."""
    agent.plant(figures_of(lab, profile))


def figures_of(lab: Lab, profile: str) -> Figures:
    """What the device tells in a profile."""
    chosen = profiles.PROFILES[profile]
    whole = (lab.spec.firewall_bits_per_second or 10_000_000_000) / 8  # bytes
    growths = str(profiles.falls_path(lab))
    busy: dict[str, Any] = {
        "interfaces": ["c0", "s0"],
        "column": "bytes",
        "per_second": whole * chosen.firewall_ratio,
        "more_per_second": whole * chosen.grow_by_ratio,
        "growths": {"file": growths},
    }
    if chosen.packets_per_second is not None:
        busy |= {"column": "packets", "per_second": chosen.packets_per_second}
    units: dict[str, Any] = {"points": [[0, 1]]}
    if chosen.grow_after_s:
        units = {"lines": {"file": growths, "first": 1}}
    boxes = {
        BOXES[letter]: {"type": "gauge", "busy": {"program": inspector_argv(lab, letter)[0]}}
        for letter in chosen.inspects
    }
    return boxes | {
        CPU: {"type": "gauge", "busy": busy},
        SESSIONS: {"type": "gauge", "lines": CONNECTIONS},
        UNITS: {"type": "gauge", **units},
    }


def witnesses_of(agent: SnmpAgent, devices: Mapping[str, Sequence[str]], folder: Path) -> Path:
    """A file of witnesses that ask the agent, a device for each group of interfaces; a single
    device tells of all that it has, and is pinged. Two that inspect tell their CPU."""
    profiles_file = folder / "lab-profile.toml"
    boxes = [BOX_PROFILE.format(letter=letter, oid=oid) for letter, oid in BOXES.items()]
    profiles_file.write_text("\n".join([PROFILE, *boxes]))
    named = [f"box-{letter}" for letter, oid in BOXES.items() if oid in agent.figures]
    if len(devices) == 1:
        named = ["lab"]
    entries = []
    for (device, interfaces), name in zip_longest(devices.items(), named):
        more = {"profile": name, "profiles_file": profiles_file.name} if name else {}
        entries.append(agent.entry(device, interfaces=list(interfaces), **more))
    if len(devices) == 1:
        told = {"device": next(iter(devices)), "source": "ping", "address": agent.address}
        entries.append(witness_entry(told))
    path = folder / "witnesses.toml"
    path.write_text("\n".join(entries))
    return path
