"""Findings about problems that agents or the coordinator had apart from the traffic.

Agents send their problems (:class:`~broadside.exchange.messages.ServiceOutage`) with a time in
their records. This module is used to merge them for a burst. They will not change a verdict,
because you can see lost data in the completeness.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from broadside.coordinator.core.measure.records.evidence import BurstEvidence
from broadside.coordinator.core.summary import Finding, Outage, caution, note
from broadside.exchange.messages import OutageKind, ServiceOutage

# If several agents have problems within this time, they will be reported as the same outage.
_SAME: Final = timedelta(seconds=5)
# How many outages with the same kind to list in a sentence.
_TOLD_MAX_COUNT: Final = 3
_NOTHING_WAITED: Final = (OutageKind.LOST, OutageKind.FORGED, OutageKind.UNREADABLE)
# How many outages to store in a burst's summary.
KEPT_MAX_COUNT: Final = 16


class _Template(NamedTuple):
    """Text to report a problem of some kind.

    Attributes:
        id: Finding id.
        weight: Finding weight.
        what: What happened, as text with placeholders for ``who`` and ``count``.
        next_step: What to do, or None if nothing.
    """

    id: str
    weight: float
    what: str
    next_step: str | None = None


_TEMPLATES: Final[Mapping[OutageKind, _Template]] = {
    OutageKind.LOST: _Template(
        "writes-lost",
        60,
        "{count} records of {who} were lost, because their disk was full",
        "Raise BROADSIDE_AGENT_SPOOL_MAX_BYTES, or use a larger disk for the spool, then run again",
    ),
    OutageKind.QUEUE_AWAY: _Template("queue-away", 15, "the queue did not answer {who}"),
    OutageKind.TABLE_AWAY: _Template("table-away", 15, "the table did not answer {who}"),
    OutageKind.RAW_AWAY: _Template("raw-away", 12, "the store of raw output did not answer {who}"),
    OutageKind.SPOOLED: _Template("writes-spooled", 14, "{count} records of {who} waited on disk"),
    OutageKind.DUPLICATE: _Template(
        "duplicates-dropped", 13, "{who} dropped {count} messages for jobs that were taken already"
    ),
    OutageKind.FORGED: _Template(
        "jobs-forged",
        70,
        "{who} refused {count} messages that are not jobs of the plan of their run",
        "Read the dead letters with the reason NotPlanned (`broadside deadletters`), and check who "
        "can send to the queue",
    ),
    OutageKind.UNREADABLE: _Template(
        "unreadable-rows", 16, "{who} excluded {count} messages or rows that cannot be read"
    ),
    OutageKind.CLOCK_STEPPED: _Template(
        "clock-stepped",
        40,
        "the clock of {who} was set",
        "Find out who set the clock. Time stamps of this host can be wrong by the step",
    ),
    OutageKind.TICK_FAILED: _Template("ticks-failed", 15, "{who} could not supervise its runs"),
}


def outages(evidence: BurstEvidence) -> tuple[Outage, ...]:
    """Return the outages in a burst, with overlapping problems of the same kind merged.

    Pairs can be in any order. The result has no more than :data:`KEPT_MAX_COUNT` outages, starting
    with the earliest.
    """
    reported: dict[str, set[ServiceOutage]] = {}
    for pair in evidence.pairs:
        for record in (pair.report, pair.server_test):
            if record is not None:
                reported.setdefault(record.agent_id, set()).update(record.troubles)
    results = []
    for kind in OutageKind:
        spells = sorted(
            (
                (spell, agent_id)
                for agent_id, troubles in reported.items()
                for spell in troubles
                if spell.kind is kind
            ),
            key=lambda item: (item[0].from_at, item[1], item[0].count),
        )
        results += [_outage(kind, group, len(reported)) for group in _touching(spells)]
    results.sort(key=lambda outage: outage.from_at)
    return tuple(results[:KEPT_MAX_COUNT])


def _touching(spells: Iterable[tuple[ServiceOutage, str]]) -> list[list[tuple[ServiceOutage, str]]]:
    """Group problems so that there is a pause between groups. They need to be sorted by start."""
    groups: list[list[tuple[ServiceOutage, str]]] = []
    reach_at: datetime | None = None
    for spell, agent_id in spells:
        end_at = spell.to_at or spell.from_at
        if reach_at is None or spell.from_at - reach_at > _SAME:
            groups.append([])
            reach_at = end_at
        groups[-1].append((spell, agent_id))
        reach_at = max(reach_at, end_at)
    return groups


def _outage(
    kind: OutageKind, group: Sequence[tuple[ServiceOutage, str]], reporting_agents_count: int
) -> Outage:
    ends_at = [spell.to_at for spell, _ in group if spell.to_at is not None]
    return Outage(
        kind=kind,
        from_at=group[0][0].from_at,
        # A report may be written before the end. If another report has an end, use it.
        to_at=max(ends_at, default=None),
        affected_agents_count=len({agent_id for _, agent_id in group}),
        reporting_agents_count=reporting_agents_count,
        count=sum(spell.count for spell, _ in group),
    )


def outage_findings(
    burst_outages: Sequence[Outage], *, late_count: int, whole: bool
) -> Iterator[Finding]:
    """Yield a finding for each kind of outage.

    Args:
        burst_outages: Outages during the burst.
        late_count: Number of reports that had to wait on disk.
        whole: Set to true if there is no missing data.
    """
    for kind, template in _TEMPLATES.items():
        of_kind = [outage for outage in burst_outages if outage.kind is kind]
        if not of_kind:
            continue
        sentence = _sentence(template, of_kind)
        if kind is OutageKind.DUPLICATE:
            sentence += "; no job ran twice"
        elif kind not in _NOTHING_WAITED:
            late = f"{late_count} reports arrived late" if late_count else "no report was late"
            sentence += f"; {late}" + ", no record is missing" * whole
        yield _finding(template, sentence)


def _sentence(template: _Template, results: Sequence[Outage]) -> str:
    spans = [
        template.what.format(
            who=f"{outage.affected_agents_count} of {outage.reporting_agents_count} agents",
            count=outage.count,
        )
        + f" {_when(outage.from_at, outage.to_at)}"
        for outage in results[:_TOLD_MAX_COUNT]
    ]
    more = len(results) - len(spans)
    return "; ".join(spans) + (f"; and {more} more times" if more else "")


def coordinator_findings(troubles: Sequence[ServiceOutage]) -> Iterator[Finding]:
    """Yield findings about problems that the coordinator had during a run."""
    for kind, template in _TEMPLATES.items():
        spells = [trouble for trouble in troubles if trouble.kind is kind]
        if not spells:
            continue
        what = template.what.format(who="the coordinator", count=sum(s.count for s in spells))
        spans = [_when(spell.from_at, spell.to_at) for spell in spells[:_TOLD_MAX_COUNT]]
        more = len(spells) - len(spans)
        sentence = f"{what} {', '.join(spans)}" + (f" and {more} more times" if more else "")
        yield _finding(template._replace(id=f"coordinator-{template.id}"), sentence)


def _finding(template: _Template, sentence: str) -> Finding:
    reported = note if template.next_step is None else caution
    return reported(
        id=template.id,
        weight=template.weight,
        sentence=f"{sentence[:1].upper()}{sentence[1:]}.",
        next_step=template.next_step,
    )


def _when(from_at: datetime, to_at: datetime | None) -> str:
    if to_at is None:
        return f"from {from_at:%H:%M:%S} UTC on"
    if to_at - from_at < timedelta(seconds=1):
        return f"at {from_at:%H:%M:%S} UTC"
    return f"between {from_at:%H:%M:%S} and {to_at:%H:%M:%S} UTC"
