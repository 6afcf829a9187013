"""Detection of hosts that differ from other hosts in the same role."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from broadside.coordinator.core.judge.conditions import UNKNOWN
from broadside.coordinator.core.plan.plain_fields import plain_fields
from broadside.coordinator.core.summary import Finding, warning
from broadside.exchange.messages import Presence, Role

BESIDE: Final = ("kernel", "engine_version", "vm_size", "cpu_count", "nic_mtu_bytes", "gate")
# Number of hosts to list for each field.
NAMED_COUNT: Final = 3


def drift_findings(fleet: Sequence[Presence], agent_ids: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if hosts in the same role are different.

    An unknown value does not count as a difference.

    Args:
        fleet: Agents that were present at launch.
        agent_ids: Ids of the agents that took part in the run.
    """
    said = [
        line
        for role in Role
        for line in _drifts([a for a in fleet if a.role is role and a.agent_id in agent_ids])
    ]
    if not said:
        return
    more = f"; and {len(said) - 5} more" if len(said) > 5 else ""
    yield warning(
        id="hosts-differ",
        weight=55,
        sentence=f"hosts of one role are not alike: {'; '.join(said[:5])}{more}",
        next_step="make the hosts alike, or leave the ones that differ out",
    )


def _drifts(hosts: Sequence[Presence]) -> Iterator[str]:
    """Yield a text for each field that has different values.

    The text lists the most common value and the hosts that have another one.
    """
    values: dict[str, dict[str, str]] = {}
    for host in hosts:
        for name, text in described(host).items():
            values.setdefault(name, {})[host.agent_id] = text
    for name, told in values.items():
        counts = Counter(told.values())
        if len(counts) < 2:
            continue
        usual, most_count = counts.most_common(1)[0]
        odd = [f"{host} has {text}" for host, text in told.items() if text != usual]
        more = f" and {len(odd) - NAMED_COUNT} more" if len(odd) > NAMED_COUNT else ""
        yield f"{name}: {', '.join(odd[:NAMED_COUNT])}{more}, {most_count} have {usual}"


def described(host: Presence) -> Mapping[str, str]:
    """Return the known properties of a host that should be the same in a role."""
    fields = plain_fields(host)
    kept = {name: fields[name] for name in BESIDE}
    kept |= {
        name.removeprefix("passport.").removeprefix("offloads.").removeprefix("sysctls."): text
        for name, text in fields.items()
        if name.startswith("passport.")
    }
    words = {"True": "on", "False": "off"}
    return {name: words.get(text, text) for name, text in kept.items() if text not in UNKNOWN}
