"""Findings about problems that agents or the coordinator had apart from the traffic.

Agents send their problems (:class:`~broadside.exchange.messages.Trouble`) with a time in their
records. This module is used to merge them for a burst. They will not change a verdict, because you
can see lost data in the completeness.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from broadside.coordinator.core.measure.evidence import BurstEvidence
from broadside.coordinator.core.summary import Finding, Outage, caution, note
from broadside.exchange.messages import Trouble, TroubleKind

# If several agents have problems within this time, they will be reported as the same outage.
_SAME: Final = timedelta(seconds=5)
# How many outages with the same kind to list in a sentence.
_TOLD_MAX_COUNT: Final = 3
_NOTHING_WAITED: Final = (TroubleKind.LOST, TroubleKind.FORGED, TroubleKind.UNREADABLE)
# How many outages to store in a burst's summary.
KEPT_MAX_COUNT: Final = 16


class _Words(NamedTuple):
    """Text to report a problem of some kind.

    Attributes:
        id: Finding id.
        weight: Finding weight.
        what: What happened, as text with placeholders for ``who`` and ``count``.
        next_step: What to do, if anything to do.
    """

    id: str
    weight: float
    what: str
    next_step: str | None = None


_WORDS: Final[Mapping[TroubleKind, _Words]] = {
    TroubleKind.LOST: _Words(
        "writes-lost",
        60,
        "{count} writes of {who} found no room on disk",
        "raise BROADSIDE_AGENT_SPOOL_MAX_BYTES, or give the spool a disk that can be written",
    ),
    TroubleKind.QUEUE_AWAY: _Words("queue-away", 15, "the queue did not answer {who}"),
    TroubleKind.TABLE_AWAY: _Words("table-away", 15, "the table did not answer {who}"),
    TroubleKind.RAW_AWAY: _Words("raw-away", 12, "the store of raw output did not answer {who}"),
    TroubleKind.SPOOLED: _Words("writes-spooled", 14, "{count} writes of {who} waited on disk"),
    TroubleKind.DUPLICATE: _Words(
        "duplicates-dropped", 13, "{who} dropped {count} messages whose job somebody had already"
    ),
    TroubleKind.FORGED: _Words(
        "jobs-forged",
        70,
        "{who} refused {count} messages that are no jobs of their run's plan",
        "look at the dead letters with reason NotPlanned, and at who may send to the queue",
    ),
    TroubleKind.UNREADABLE: _Words(
        "unreadable-set-aside", 16, "{who} set {count} messages or rows aside that cannot be read"
    ),
    TroubleKind.CLOCK_STEPPED: _Words(
        "clock-stepped",
        40,
        "the clock of {who} was set",
        "find out who set it: instants of this run that it told may be off by the step",
    ),
    TroubleKind.TICK_FAILED: _Words("ticks-failed", 15, "{who} could not look after its runs"),
}


def outages(evidence: BurstEvidence) -> tuple[Outage, ...]:
    """Return the outages in a burst, with overlapping problems of the same kind merged.

    Pairs can be in any order. The result has no more than :data:`KEPT_MAX_COUNT` outages, starting
    with the earliest.
    """
    told: dict[str, set[Trouble]] = {}
    for pair in evidence.pairs:
        for record in (pair.report, pair.server_test):
            if record is not None:
                told.setdefault(record.agent_id, set()).update(record.troubles)
    found = []
    for kind in TroubleKind:
        spells = sorted(
            (
                (spell, agent_id)
                for agent_id, troubles in told.items()
                for spell in troubles
                if spell.kind is kind
            ),
            key=lambda item: (item[0].from_at, item[1], item[0].count),
        )
        found += [_outage(kind, group, len(told)) for group in _touching(spells)]
    found.sort(key=lambda outage: outage.from_at)
    return tuple(found[:KEPT_MAX_COUNT])


def _touching(spells: Iterable[tuple[Trouble, str]]) -> list[list[tuple[Trouble, str]]]:
    """Group problems so that there is a pause between groups. They must be sorted by start."""
    groups: list[list[tuple[Trouble, str]]] = []
    reach_at: datetime | None = None
    for spell, agent_id in spells:
        end_at = spell.to_at or spell.from_at
        if reach_at is None or spell.from_at - reach_at > _SAME:
            groups.append([])
            reach_at = end_at
        groups[-1].append((spell, agent_id))
        reach_at = max(reach_at, end_at)
    return groups


def _outage(kind: TroubleKind, group: Sequence[tuple[Trouble, str]], asked_count: int) -> Outage:
    ends_at = [spell.to_at for spell, _ in group if spell.to_at is not None]
    return Outage(
        kind=kind,
        from_at=group[0][0].from_at,
        # A report may be written before the end. If another report has an end, use it.
        to_at=max(ends_at, default=None),
        agents_count=len({agent_id for _, agent_id in group}),
        asked_count=asked_count,
        count=sum(spell.count for spell, _ in group),
    )


def outage_findings(found: Sequence[Outage], *, late_count: int, whole: bool) -> Iterator[Finding]:
    """Yield a finding for each kind of outage.

    Args:
        found: Outages during the burst.
        late_count: Number of reports that had to wait on disk.
        whole: Set to true if there is no missing data.
    """
    for kind, words in _WORDS.items():
        of_kind = [outage for outage in found if outage.kind is kind]
        if not of_kind:
            continue
        sentence = _sentence(words, of_kind)
        if kind is TroubleKind.DUPLICATE:
            sentence += "; no job was carried out twice"
        elif kind not in _NOTHING_WAITED:
            late = f"{late_count} reports arrived late" if late_count else "no report was late"
            sentence += f"; {late}" + ", nothing is missing" * whole
        yield _finding(words, sentence)


def _sentence(words: _Words, found: Sequence[Outage]) -> str:
    spans = [
        words.what.format(
            who=f"{outage.agents_count} of {outage.asked_count} agents", count=outage.count
        )
        + f" {_when(outage.from_at, outage.to_at)}"
        for outage in found[:_TOLD_MAX_COUNT]
    ]
    more = len(found) - len(spans)
    return "; ".join(spans) + (f"; and {more} times more" if more else "")


def coordinator_findings(troubles: Sequence[Trouble]) -> Iterator[Finding]:
    """Yield findings about problems that the coordinator had during a run."""
    for kind, words in _WORDS.items():
        spells = [trouble for trouble in troubles if trouble.kind is kind]
        if not spells:
            continue
        what = words.what.format(who="the coordinator", count=sum(s.count for s in spells))
        spans = [_when(spell.from_at, spell.to_at) for spell in spells[:_TOLD_MAX_COUNT]]
        more = len(spells) - len(spans)
        sentence = f"{what} {', '.join(spans)}" + (f" and {more} times more" if more else "")
        yield _finding(words._replace(id=f"coordinator-{words.id}"), sentence)


def _finding(words: _Words, sentence: str) -> Finding:
    said = note if words.next_step is None else caution
    return said(id=words.id, weight=words.weight, sentence=sentence, next_step=words.next_step)


def _when(from_at: datetime, to_at: datetime | None) -> str:
    if to_at is None:
        return f"from {from_at:%H:%M:%S} UTC on"
    if to_at - from_at < timedelta(seconds=1):
        return f"at {from_at:%H:%M:%S} UTC"
    return f"between {from_at:%H:%M:%S} and {to_at:%H:%M:%S} UTC"
