"""Runs snmpd in the namespace of the lab's firewall, to simulate a device with telemetry.

The interface counters come from the kernel. CPU, sessions and units depend on the profile. CPU is
the share of the rate in the profile, sessions are the connections that the kernel tracks, and each
growth step adds a unit.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from broadside.lab import profiles
from broadside.lab.inspection import inspector_argv
from broadside.lab.telemetry_file import source_entry
from broadside.lab.topology import TWIN_LETTERS, Lab, firewall_namespace, management_address
from tests.devices.snmp_agent import Figures, SnmpAgent

# netSnmpPlaypen
TREE: Final = "1.3.6.1.4.1.8072.9999.9999"
CPU, SESSIONS, UNITS = (f"{TREE}.{number}.0" for number in (1, 2, 3))
PROFILE: Final = f"""[lab]
mib = "the lab's own, under NET-SNMP-MIB::netSnmpPlaypen"
read = [
    {{ quantity = "cpu_ratio", oid = "{CPU}", scale = 0.01 }},
    {{ quantity = "sessions_count", oid = "{SESSIONS}" }},
    {{ quantity = "units_count", oid = "{UNITS}" }},
]
"""
# OIDs for the CPU of each twin firewall.
BOXES: Final = dict(zip(TWIN_LETTERS, (f"{TREE}.4.{n}.0" for n in (1, 2)), strict=True))
BOX_PROFILE: Final = """[box-{letter}]
mib = "the CPU of one of the lab's two firewalls, of a core of which its process makes use"
read = [{{ quantity = "cpu_ratio", oid = "{oid}", scale = 0.0001, over_s = 1 }}]
"""
CONNECTIONS: Final = {"file": "/proc/net/nf_conntrack", "holding": "ESTABLISHED"}
PORT: Final = 161


def firewall_agent(lab: Lab, folder: Path, profile: str = "plain") -> SnmpAgent:
    """Return the agent for a lab's firewall.

    Start it, and use :func:`follow` to change its profile.

    Args:
        lab: The lab.
        folder: Folder for the agent's files.
        profile: Name of the profile.
    """
    return SnmpAgent(
        folder,
        address=str(management_address(lab.spec, "firewall")),
        port=PORT,
        namespace=firewall_namespace(lab.spec.prefix),
        figures=figures_of(lab, profile),
    )


def follow(agent: SnmpAgent, lab: Lab, profile: str) -> None:
    """Update the agent after a profile was applied.

    Args:
        agent: The agent.
        lab: The lab.
        profile: Name of the new profile.
    """
    agent.plant(figures_of(lab, profile))


def figures_of(lab: Lab, profile: str) -> Figures:
    """Return the values that the device reports in a profile.

    Args:
        lab: The lab.
        profile: Name of the profile.
    """
    chosen = profiles.PROFILES[profile]
    # Rate in bytes per second.
    complete = (lab.spec.firewall_bits_per_second or 10_000_000_000) / 8
    growths = str(profiles.falls_path(lab))
    busy: dict[str, Any] = {
        "interfaces": ["c0", "s0"],
        "column": "bytes",
        "per_second": complete * chosen.firewall_ratio,
        "more_per_second": complete * chosen.grow_by_ratio,
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


def telemetry_entries(
    agent: SnmpAgent, devices: Mapping[str, Sequence[str]], folder: Path
) -> list[str]:
    """Return the entries of a telemetry file that poll the agent.

    A single device reports all its values and is also pinged. Two devices that inspect traffic
    report their CPU.

    Args:
        agent: The agent to poll.
        devices: Interfaces by device.
        folder: Folder for the files.
    """
    profiles_file = folder / "lab-profile.toml"
    boxes = [BOX_PROFILE.format(letter=letter, oid=oid) for letter, oid in BOXES.items()]
    profiles_file.write_text("\n".join([PROFILE, *boxes]))
    named = [f"box-{letter}" for letter, oid in BOXES.items() if oid in agent.figures]
    if len(devices) == 1:
        named = ["lab"]
    entries = []
    for (device, interfaces), name in zip_longest(devices.items(), named):
        more = {"profile": name, "profiles_file": str(profiles_file)} if name else {}
        entries.append(agent.entry(device, interfaces=list(interfaces), **more))
    if len(devices) == 1:
        ping = {"device": next(iter(devices)), "type": "ping", "address": agent.address}
        entries.append(source_entry(ping))
    return entries
