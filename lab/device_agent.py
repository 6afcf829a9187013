"""The lab's firewall as a device that tells of itself: a real snmpd in its namespace, over the
management network.

Its interfaces are the kernel's own. CPU, sessions and units are those of the profile: a share of
the rate that the profile gives it, the kernel's count of connections, a unit for each growth.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lab import profiles
from lab.snmp_agent import Figures, SnmpAgent
from lab.topology import Lab, firewall_namespace, management_address

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
CONNECTIONS: Final = {"file": "/proc/net/nf_conntrack", "holding": "ESTABLISHED"}
PORT: Final = 161


def firewall_agent(lab: Lab, folder: Path) -> SnmpAgent:
    """The agent of a lab's firewall; start it, and :func:`follow` its profiles."""
    return SnmpAgent(
        folder,
        address=str(management_address(lab.spec.prefix, "firewall")),
        port=PORT,
        namespace=firewall_namespace(lab.spec.prefix),
        figures=figures_of(lab, "plain"),
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
    return {
        CPU: {"type": "gauge", "busy": busy},
        SESSIONS: {"type": "gauge", "lines": CONNECTIONS},
        UNITS: {"type": "gauge", **units},
    }


def witnesses_of(agent: SnmpAgent, devices: Mapping[str, Sequence[str]], folder: Path) -> Path:
    """A file of witnesses that ask the agent, a device for each group of interfaces; a single
    device tells of all that it has, and is pinged."""
    profile = folder / "lab-profile.toml"
    profile.write_text(PROFILE)
    whole = {"profile": "lab", "profiles_file": profile.name} if len(devices) == 1 else {}
    entries = [
        agent.entry(device, interfaces=list(interfaces), **whole)
        for device, interfaces in devices.items()
    ]
    if whole:
        told = {"device": next(iter(devices)), "source": "ping", "address": agent.address}
        lines = [f"{name} = {json.dumps(value)}" for name, value in told.items()]
        entries.append("\n".join(["[[witness]]", *lines, ""]))
    path = folder / "witnesses.toml"
    path.write_text("\n".join(entries))
    return path
