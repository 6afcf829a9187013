"""One source removed or forged: nobody may gain by it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadside.exchange.messages import ClockReading, JobReport, Outcome, ServerTest
from tests.hunt.engine import End, FirewallLedger, Record, TrackColumns, World
from tests.hunt.planting import Rng
from tests.hunt.worlds import forged

Told = TypeVar("Told", JobReport, ServerTest)
Tamper = Callable[[World, Rng], World | None]  # None: there is nothing to tamper with


def tampered(name: str, world: World, rng: Rng) -> World | None:
    """The world after one source was tampered with; None: it has no such source."""
    return TAMPERS[name](world, rng)


# What takes place on ends and records ---------------------------------------------------------


def _ends(world: World, change: Callable[[int, int, End], End]) -> World:
    told = tuple(
        {pair: change(number, pair, end) for pair, end in ends.items()}
        for number, ends in enumerate(world.ends)
    )
    return replace(world, ends=told)


def _records(world: World, change: Callable[[int, Record], Record | None]) -> World:
    told = []
    for number, records in enumerate(world.records):
        changed = [change(number, record) for record in records]
        told.append(tuple(record for record in changed if record is not None))
    return replace(world, records=tuple(told))


def _pair(record: Record) -> int:
    return int(record.test.agent_id.removeprefix("server-"))


def _some_pair(world: World, rng: Rng) -> int:
    return int(rng.integers(len(world.plan.pairs)))


def _changed(
    *,
    end: Callable[[End], End] | None = None,
    record: Callable[[Record], Record | None] | None = None,
    one: bool = False,
) -> Tamper:
    """What ends and records become, of every pair or of one."""

    def tamper(world: World, rng: Rng) -> World:
        chosen = _some_pair(world, rng) if one else None
        if end is not None:
            world = _ends(
                world, lambda _, pair, each: end(each) if chosen in (None, pair) else each
            )
        if record is not None:
            world = _records(
                world, lambda _, each: record(each) if chosen in (None, _pair(each)) else each
            )
        return world

    return tamper


def _on_ledger(
    change: Callable[[World, FirewallLedger, Rng], FirewallLedger | None],
) -> Tamper:
    """What the ledger becomes, where there is one; None: nothing to tamper with."""

    def tamper(world: World, rng: Rng) -> World | None:
        told = None if world.ledger is None else change(world, world.ledger, rng)
        return None if told is None else replace(world, ledger=told)

    return tamper


# Removals -------------------------------------------------------------------------------------


def _drop_ledger(world: World, _rng: Rng) -> World | None:
    return None if world.ledger is None else replace(world, ledger=None)


def _bins(ledger: FirewallLedger, keep: NDArray[np.bool_]) -> FirewallLedger:
    return replace(
        ledger, start_s=ledger.start_s[keep], end_s=ledger.end_s[keep], bytes=ledger.bytes[keep]
    )


def _in_bursts(world: World, ledger: FirewallLedger) -> NDArray[np.bool_]:
    inside = np.zeros(len(ledger), np.bool_)
    for burst in world.plan.bursts:
        begun, ended = burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()
        inside |= (ledger.end_s > begun) & (ledger.start_s < ended + 300)
    return inside


def _half(_world: World, ledger: FirewallLedger, rng: Rng) -> FirewallLedger | None:
    if len(ledger) < 4:
        return None
    early = np.arange(len(ledger)) < len(ledger) // 2
    return _bins(ledger, early if rng.random() < 0.5 else ~early)


def _unknown_in_bursts(world: World, ledger: FirewallLedger, rng: Rng) -> FirewallLedger:
    hidden = _in_bursts(world, ledger) & (rng.random(len(ledger)) < rng.uniform(0.3, 1))
    return replace(ledger, bytes=np.where(hidden, np.nan, ledger.bytes))


def _without_quiet(world: World, ledger: FirewallLedger, _rng: Rng) -> FirewallLedger | None:
    inside = _in_bursts(world, ledger)
    return _bins(ledger, inside) if inside.any() else None


def _without_words(_world: World, ledger: FirewallLedger, _rng: Rng) -> FirewallLedger:
    return replace(ledger, layer="unknown", lag_hint_s=None)


def _unread(*, after_only: bool = False, one: bool = False) -> Tamper:
    """Without readings of clocks, or those of the end."""
    gone = {"clock_after": None} if after_only else {"clock_after": None, "clock_before": None}

    def end(end: End) -> End:
        claim, report = end.claim, end.report
        if claim is not None and not after_only:
            claim = claim.model_copy(update={"clock": None})
        return replace(end, claim=claim, report=report and report.model_copy(update=gone))

    def record(record: Record) -> Record:
        return replace(record, test=record.test.model_copy(update=gone))

    return _changed(end=end, record=record, one=one)


def _without_report(end: End) -> End:
    return replace(end, report=None)


def _drop_burst(world: World, rng: Rng) -> World | None:
    if len(world.plan.bursts) < 2:
        return None
    chosen = int(rng.integers(len(world.plan.bursts)))
    fewer = _ends(world, lambda number, _, end: End() if number == chosen else end)
    return _records(fewer, lambda number, record: None if number == chosen else record)


def _drop_slow_seconds(world: World, rng: Rng) -> World:
    """Of every server: whoever edits records begins with the seconds that look bad."""
    share = float(rng.uniform(0.02, 0.3))

    def record(_number: int, record: Record) -> Record:
        tracks = []
        for track in record.tracks:
            if len(track) == 0:
                continue
            least = np.quantile(track.transferred_bytes, share)
            tracks.append(track.rows(track.transferred_bytes > least))
        return replace(record, tracks=tuple(tracks))

    return _records(world, record)


def _drop_hosts(world: World, _rng: Rng) -> World:
    return replace(
        _ends(world, lambda _number, _pair, end: replace(end, host=None)), nic_bits_per_second=None
    )


def _drop_neighbours(world: World, _rng: Rng) -> World | None:
    return None if not world.neighbours else replace(world, neighbours=())


# Forgeries --------------------------------------------------------------------------------------


def _forge(how: str, by: float, *, everyone: bool) -> Tamper:
    def tamper(world: World, rng: Rng) -> World | None:
        chosen = _some_pair(world, rng)
        heard = [end.report for ends in world.ends for end in ends.values()]
        if not any(heard):
            return None  # no other source says what was sent

        def record(number: int, record: Record) -> Record:
            pair = _pair(record)
            if not record.tracks or (not everyone and pair != chosen):
                return record
            end = world.ends[number].get(pair)
            if end is None or end.report is None or not end.tracks:
                return record  # nobody could contradict it
            return forged(record, how, by)

        return _records(world, record)

    return tamper


def _says_measured(world: World, rng: Rng) -> World | None:
    """A client that failed, came late or was cut says that all went well."""
    bad = sorted(
        {
            pair
            for ends in world.ends
            for pair, end in ends.items()
            if end.report is not None and end.report.outcome is not Outcome.MEASURED
        }
    )
    if not bad:
        return None
    chosen = int(rng.choice(bad))

    def end(_number: int, pair: int, end: End) -> End:
        if pair != chosen or end.report is None:
            return end
        return replace(end, report=_praised(end.report))

    return _ends(world, end)


def _praised(report: JobReport) -> JobReport:
    return report.model_copy(
        update={
            "outcome": Outcome.MEASURED,
            "reason": None,
            "first_data_at": report.planned_start_at,
            "start_error_s": 0.01,
        }
    )


def _fine(reading: ClockReading | None) -> ClockReading | None:
    return reading and reading.model_copy(update={"offset_s": 0.0, "bound_s": 0.001})


def _fine_clock(end: End) -> End:
    """A client's readings say offset 0, bound 1 ms."""
    claim, report = end.claim, end.report
    if claim is not None:
        claim = claim.model_copy(update={"clock": _fine(claim.clock)})
    if report is not None:
        told = {
            "clock_before": _fine(report.clock_before),
            "clock_after": _fine(report.clock_after),
        }
        report = report.model_copy(update=told)
    return replace(end, claim=claim, report=report)


def _move_client(world: World, rng: Rng) -> World:
    chosen, by_s = _some_pair(world, rng), float(rng.uniform(-5, 5))

    def end(_number: int, pair: int, end: End) -> End:
        if pair != chosen or end.report is None:
            return end
        return replace(end, tracks=_moved(end.tracks, by_s), report=_later(end.report, by_s))

    return _ends(world, end)


def _move_servers(world: World, rng: Rng) -> World:
    by_s = float(rng.uniform(-5, 5))
    return _records(
        world,
        lambda _, record: replace(
            record, tracks=_moved(record.tracks, by_s), test=_later(record.test, by_s)
        ),
    )


def _moved(tracks: tuple[TrackColumns, ...], by_s: float) -> tuple[TrackColumns, ...]:
    return tuple(replace(track, first_data_at_s=track.first_data_at_s + by_s) for track in tracks)


def _later(told: Told, by_s: float) -> Told:
    at = told.first_data_at
    later = None if at is None else at + timedelta(seconds=by_s)
    return told.model_copy(update={"first_data_at": later})


def _move_ledger(_world: World, ledger: FirewallLedger, rng: Rng) -> FirewallLedger:
    by_s = float(rng.uniform(-400, 400))
    return replace(ledger, start_s=ledger.start_s + by_s, end_s=ledger.end_s + by_s)


def _nan_ledger(_world: World, ledger: FirewallLedger, _rng: Rng) -> FirewallLedger:
    return replace(ledger, bytes=np.full(len(ledger), np.nan))


def _negative_ledger(_world: World, ledger: FirewallLedger, rng: Rng) -> FirewallLedger:
    odd = rng.random(len(ledger)) < 0.2
    return replace(ledger, bytes=np.where(odd, -ledger.bytes, ledger.bytes))


def _swap_cookies(world: World, _rng: Rng) -> World | None:
    """Every server's record names the cookie of the pair after it."""
    if len(world.plan.pairs) < 2:
        return None
    count = len(world.plan.pairs)

    def record(number: int, record: Record) -> Record:
        engine = record.test.engine.model_copy(
            update={"cookie": f"cookie-{number}-{(_pair(record) + 1) % count}"}
        )
        return replace(record, test=record.test.model_copy(update={"engine": engine}))

    return _records(world, record)


def _copy_fullest(world: World, rng: Rng) -> World | None:
    """What both ends of one pair tell is written anew from what those of the fullest one told."""
    chosen = _some_pair(world, rng)
    models = []
    for records in world.records:
        others = [record for record in records if _pair(record) != chosen]
        fullest = max(others, key=_payload_bytes, default=None)
        models.append(None if fullest is None or _payload_bytes(fullest) == 0 else fullest)
    if not any(models):
        return None

    def record(number: int, record: Record) -> Record:
        model = models[number]
        if model is None or _pair(record) != chosen:
            return record
        engine = record.test.engine.model_copy(update={"totals": model.test.engine.totals})
        test = record.test.model_copy(update={"engine": engine})
        return replace(record, test=test, tracks=model.tracks, host=model.host)

    def end(number: int, pair: int, end: End) -> End:
        model = models[number]
        if model is None or pair != chosen or end.report is None:
            return end
        told = world.ends[number].get(_pair(model), End())
        engine = end.report.engine
        if engine is not None:
            engine = engine.model_copy(update={"totals": model.test.engine.totals})
        report = _praised(end.report.model_copy(update={"engine": engine}))
        return replace(end, report=report, tracks=told.tracks, host=told.host)

    return _ends(_records(world, record), end)


def _payload_bytes(record: Record) -> float:
    return sum(float(track.transferred_bytes.sum()) for track in record.tracks)


# Every tampering --------------------------------------------------------------------------------

_FORGED_ONE: Final = (
    ("times", 10.0),
    ("times", 2.0),
    ("times", 1.3),
    ("huge", 1.0),
    ("repeat", 1.0),
)
_FORGED_ALL: Final = (
    *(("times", 10.0), ("times", 1.3), ("times", 1.1), ("repeat", 1.0), ("negative", 1.0)),
    *(("nan", 1.0), ("reverse", 1.0), ("shift", 7.0)),
)
TAMPERS: Final[dict[str, Tamper]] = {  # a seed's tamperings rest on their order
    "drop-ledger": _drop_ledger,
    "drop-half-the-ledger": _on_ledger(_half),
    "unknown-bins-in-bursts": _on_ledger(_unknown_in_bursts),
    "drop-quiet-bins": _on_ledger(_without_quiet),
    "drop-lag-hint-and-layer": _on_ledger(_without_words),
    "drop-clock-readings": _unread(),
    "drop-clock-after": _unread(after_only=True),
    "drop-one-pair's-clock-readings": _unread(one=True),
    "drop-receivers-seconds": _changed(record=lambda record: replace(record, tracks=())),
    "drop-servers-records": _changed(record=lambda _: None),
    "drop-one-server's-records": _changed(record=lambda _: None, one=True),
    "drop-clients-seconds": _changed(end=lambda end: replace(end, tracks=())),
    "drop-one-report": _changed(end=_without_report, one=True),
    "drop-one-client": _changed(end=lambda _: End(), one=True),
    "drop-reports": _changed(end=_without_report),
    "drop-one-pair": _changed(end=lambda _: End(), record=lambda _: None, one=True),
    "drop-one-burst": _drop_burst,
    "drop-slow-seconds": _drop_slow_seconds,
    "drop-host-counters": _drop_hosts,
    "drop-neighbours": _drop_neighbours,
    **{
        f"forge-one-server-{how}-{by:g}": _forge(how, by, everyone=False) for how, by in _FORGED_ONE
    },
    **{f"forge-servers-{how}-{by:g}": _forge(how, by, everyone=True) for how, by in _FORGED_ALL},
    "report-says-measured": _says_measured,
    "one-clock-says-all-is-well": _changed(end=_fine_clock, one=True),
    "move-one-client's-stamps": _move_client,
    "move-servers'-stamps": _move_servers,
    "move-ledger's-labels": _on_ledger(_move_ledger),
    "ledger-not-a-number": _on_ledger(_nan_ledger),
    "ledger-negative": _on_ledger(_negative_ledger),
    "swap-cookies": _swap_cookies,
    "copy-the-fullest-pair": _copy_fullest,
}
