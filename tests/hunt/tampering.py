"""One source removed or forged: nobody may gain by it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from exchange.messages import ClockReading, JobReport, Outcome, ServerTest
from tests.hunt.engine import End, FirewallLedger, Record, World
from tests.hunt.planting import Rng
from tests.hunt.worlds import forged

Tamper = Callable[[World, Rng], World | None]  # None: there is nothing to tamper with
TAMPERS: Final[dict[str, Tamper]] = {}


def _tamper(name: str) -> Callable[[Tamper], Tamper]:
    def keep(tamper: Tamper) -> Tamper:
        TAMPERS[name] = tamper
        return tamper

    return keep


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


def _is_of(record: Record, pair: int) -> bool:
    return record.test.agent_id == f"server-{pair}"


def _some_pair(world: World, rng: Rng) -> int:
    return int(rng.integers(len(world.plan.pairs)))


# Removals -------------------------------------------------------------------------------------


@_tamper("drop-ledger")
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


@_tamper("drop-half-the-ledger")
def _drop_half_ledger(world: World, rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None or len(ledger) < 4:
        return None
    early = np.arange(len(ledger)) < len(ledger) // 2
    keep = early if rng.random() < 0.5 else ~early
    return replace(world, ledger=_bins(ledger, keep))


@_tamper("unknown-bins-in-bursts")
def _unknown_in_bursts(world: World, rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None:
        return None
    hidden = _in_bursts(world, ledger) & (rng.random(len(ledger)) < rng.uniform(0.3, 1))
    return replace(world, ledger=replace(ledger, bytes=np.where(hidden, np.nan, ledger.bytes)))


@_tamper("drop-quiet-bins")
def _drop_quiet(world: World, _rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None:
        return None
    inside = _in_bursts(world, ledger)
    return None if not inside.any() else replace(world, ledger=_bins(ledger, inside))


@_tamper("drop-lag-hint-and-layer")
def _drop_words(world: World, _rng: Rng) -> World | None:
    if world.ledger is None:
        return None
    return replace(world, ledger=replace(world.ledger, layer="unknown", lag_hint_s=None))


def _unread(world: World, pairs: Callable[[int], bool], *, after_only: bool = False) -> World:
    gone: dict[str, ClockReading | None] = {"clock_after": None}
    if not after_only:
        gone["clock_before"] = None

    def end(_number: int, pair: int, end: End) -> End:
        if not pairs(pair):
            return end
        claim, report = end.claim, end.report
        if claim is not None and not after_only:
            claim = claim.model_copy(update={"clock": None})
        if report is not None:
            report = report.model_copy(update=gone)
        return replace(end, claim=claim, report=report)

    def record(_number: int, record: Record) -> Record:
        if not pairs(int(record.test.agent_id.removeprefix("server-"))):
            return record
        return replace(record, test=record.test.model_copy(update=gone))

    return _records(_ends(world, end), record)


@_tamper("drop-clock-readings")
def _drop_clocks(world: World, _rng: Rng) -> World:
    return _unread(world, lambda _: True)


@_tamper("drop-clock-after")
def _drop_after(world: World, _rng: Rng) -> World:
    return _unread(world, lambda _: True, after_only=True)


@_tamper("drop-one-pair's-clock-readings")
def _drop_one_clock(world: World, rng: Rng) -> World:
    chosen = _some_pair(world, rng)
    return _unread(world, lambda pair: pair == chosen)


@_tamper("drop-receivers-seconds")
def _drop_seconds(world: World, _rng: Rng) -> World:
    return _records(world, lambda _number, record: replace(record, tracks=()))


@_tamper("drop-servers-records")
def _drop_servers(world: World, _rng: Rng) -> World:
    return _records(world, lambda _number, _record: None)


@_tamper("drop-one-server's-records")
def _drop_server(world: World, rng: Rng) -> World:
    chosen = _some_pair(world, rng)
    return _records(world, lambda _, record: None if _is_of(record, chosen) else record)


@_tamper("drop-clients-seconds")
def _drop_client_seconds(world: World, _rng: Rng) -> World:
    return _ends(world, lambda _number, _pair, end: replace(end, tracks=()))


@_tamper("drop-one-report")
def _drop_report(world: World, rng: Rng) -> World:
    chosen = _some_pair(world, rng)
    return _ends(world, lambda _, pair, end: replace(end, report=None) if pair == chosen else end)


@_tamper("drop-one-client")
def _drop_client(world: World, rng: Rng) -> World:
    chosen = _some_pair(world, rng)
    return _ends(world, lambda _, pair, end: End() if pair == chosen else end)


@_tamper("drop-reports")
def _drop_reports(world: World, _rng: Rng) -> World:
    return _ends(world, lambda _number, _pair, end: replace(end, report=None))


@_tamper("drop-one-pair")
def _drop_pair(world: World, rng: Rng) -> World:
    chosen = _some_pair(world, rng)
    fewer = _ends(world, lambda _, pair, end: End() if pair == chosen else end)
    return _records(fewer, lambda _, record: None if _is_of(record, chosen) else record)


@_tamper("drop-one-burst")
def _drop_burst(world: World, rng: Rng) -> World | None:
    if len(world.plan.bursts) < 2:
        return None
    chosen = int(rng.integers(len(world.plan.bursts)))
    fewer = _ends(world, lambda number, _, end: End() if number == chosen else end)
    return _records(fewer, lambda number, record: None if number == chosen else record)


@_tamper("drop-slow-seconds")
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


@_tamper("drop-host-counters")
def _drop_hosts(world: World, _rng: Rng) -> World:
    return replace(
        _ends(world, lambda _number, _pair, end: replace(end, host=None)), nic_bits_per_second=None
    )


@_tamper("drop-neighbours")
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
            pair = int(record.test.agent_id.removeprefix("server-"))
            if not record.tracks or (not everyone and pair != chosen):
                return record
            end = world.ends[number].get(pair)
            if end is None or end.report is None or not end.tracks:
                return record  # nobody could contradict it
            return forged(record, how, by)

        return _records(world, record)

    return tamper


for _how, _by in (("times", 10.0), ("times", 2.0), ("times", 1.3), ("huge", 1.0), ("repeat", 1.0)):
    TAMPERS[f"forge-one-server-{_how}-{_by:g}"] = _forge(_how, _by, everyone=False)
for _how, _by in (
    ("times", 10.0),
    ("times", 1.3),
    ("times", 1.1),
    ("repeat", 1.0),
    ("negative", 1.0),
    ("nan", 1.0),
    ("reverse", 1.0),
    ("shift", 7.0),
):
    TAMPERS[f"forge-servers-{_how}-{_by:g}"] = _forge(_how, _by, everyone=True)


@_tamper("report-says-measured")
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


@_tamper("one-clock-says-all-is-well")
def _fine_clock(world: World, rng: Rng) -> World:
    """One client's readings say offset 0, bound 1 ms."""
    chosen = _some_pair(world, rng)

    def fine(reading: ClockReading | None) -> ClockReading | None:
        if reading is None:
            return None
        return reading.model_copy(update={"offset_s": 0.0, "bound_s": 0.001})

    def end(_number: int, pair: int, end: End) -> End:
        if pair != chosen:
            return end
        claim, report = end.claim, end.report
        if claim is not None:
            claim = claim.model_copy(update={"clock": fine(claim.clock)})
        if report is not None:
            told = {
                "clock_before": fine(report.clock_before),
                "clock_after": fine(report.clock_after),
            }
            report = report.model_copy(update=told)
        return replace(end, claim=claim, report=report)

    return _ends(world, end)


@_tamper("move-one-client's-stamps")
def _move_client(world: World, rng: Rng) -> World:
    chosen, by_s = _some_pair(world, rng), float(rng.uniform(-5, 5))

    def end(_number: int, pair: int, end: End) -> End:
        if pair != chosen or end.report is None:
            return end
        tracks = tuple(
            replace(track, first_data_at_s=track.first_data_at_s + by_s) for track in end.tracks
        )
        first = _later(end.report.first_data_at, by_s)
        return replace(
            end, tracks=tracks, report=end.report.model_copy(update={"first_data_at": first})
        )

    return _ends(world, end)


@_tamper("move-servers'-stamps")
def _move_servers(world: World, rng: Rng) -> World:
    by_s = float(rng.uniform(-5, 5))

    def record(_number: int, record: Record) -> Record:
        tracks = tuple(
            replace(track, first_data_at_s=track.first_data_at_s + by_s) for track in record.tracks
        )
        return replace(record, tracks=tracks, test=_moved_test(record.test, by_s))

    return _records(world, record)


def _moved_test(test: ServerTest, by_s: float) -> ServerTest:
    return test.model_copy(update={"first_data_at": _later(test.first_data_at, by_s)})


def _later(at: datetime | None, by_s: float) -> datetime | None:
    return None if at is None else at + timedelta(seconds=by_s)


@_tamper("move-ledger's-labels")
def _move_ledger(world: World, rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None:
        return None
    by_s = float(rng.uniform(-400, 400))
    return replace(
        world, ledger=replace(ledger, start_s=ledger.start_s + by_s, end_s=ledger.end_s + by_s)
    )


@_tamper("ledger-not-a-number")
def _nan_ledger(world: World, _rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None:
        return None
    return replace(world, ledger=replace(ledger, bytes=np.full(len(ledger), np.nan)))


@_tamper("ledger-negative")
def _negative_ledger(world: World, rng: Rng) -> World | None:
    ledger = world.ledger
    if ledger is None:
        return None
    odd = rng.random(len(ledger)) < 0.2
    return replace(world, ledger=replace(ledger, bytes=np.where(odd, -ledger.bytes, ledger.bytes)))


@_tamper("swap-cookies")
def _swap_cookies(world: World, _rng: Rng) -> World | None:
    """Every server's record names the cookie of the pair after it."""
    if len(world.plan.pairs) < 2:
        return None
    count = len(world.plan.pairs)

    def record(number: int, record: Record) -> Record:
        pair = int(record.test.agent_id.removeprefix("server-"))
        engine = record.test.engine.model_copy(
            update={"cookie": f"cookie-{number}-{(pair + 1) % count}"}
        )
        return replace(record, test=record.test.model_copy(update={"engine": engine}))

    return _records(world, record)


@_tamper("copy-the-fullest-pair")
def _copy_fullest(world: World, rng: Rng) -> World | None:
    """What both ends of one pair tell is written anew from what those of the fullest one told."""
    chosen = _some_pair(world, rng)
    models = []
    for records in world.records:
        others = [record for record in records if not _is_of(record, chosen)]
        fullest = max(others, key=_payload_bytes, default=None)
        models.append(None if fullest is None or _payload_bytes(fullest) == 0 else fullest)
    if not any(models):
        return None

    def record(number: int, record: Record) -> Record:
        model = models[number]
        if model is None or not _is_of(record, chosen):
            return record
        engine = record.test.engine.model_copy(update={"totals": model.test.engine.totals})
        test = record.test.model_copy(update={"engine": engine})
        return replace(record, test=test, tracks=model.tracks, host=model.host)

    def end(number: int, pair: int, end: End) -> End:
        model = models[number]
        if model is None or pair != chosen or end.report is None:
            return end
        told = world.ends[number].get(int(model.test.agent_id.removeprefix("server-")), End())
        engine = end.report.engine
        if engine is not None:
            engine = engine.model_copy(update={"totals": model.test.engine.totals})
        report = _praised(end.report.model_copy(update={"engine": engine}))
        return replace(end, report=report, tracks=told.tracks, host=told.host)

    return _ends(_records(world, record), end)


def _payload_bytes(record: Record) -> float:
    return sum(float(track.transferred_bytes.sum()) for track in record.tracks)
