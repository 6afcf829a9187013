"""Server-side tests find their pairs: by cookie, else by endpoint and time, each once."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from coordinator.core.measure.evidence import Joined, clock_correction, join_tests
from coordinator.core.plan.spec import Burst, Pair
from exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    HostSecond,
    Interval,
    JobReport,
    Outcome,
    Phase,
    ServerTest,
    Side,
    Track,
)
from exchange.messages import Flow as FlowName

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)


@dataclass(frozen=True)
class Record:
    test: ServerTest
    tracks: tuple[Track, ...] = ()
    host: tuple[HostSecond, ...] = ()


def pair(index: int) -> Pair:
    return Pair(index=index, endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=5201 + index))


def record(
    port: int, cookie: str | None, *, started_s: float = -3.0, rows: int = 10, ended: bool = True
) -> Record:
    started_at = AT + timedelta(seconds=started_s)
    return Record(
        ServerTest(
            agent_id="s",
            endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=port),
            started_at=started_at,
            first_data_at=max(AT, started_at) if started_s > -20 else started_at,
            ended_at=started_at + timedelta(seconds=14) if ended else None,
            engine=EngineReport(engine="iperf3", cookie=cookie),
        ),
        tracks=(
            Track(
                side=Side.SERVER,
                flow=FlowName.UP,
                first_data_at_s=AT.timestamp(),
                intervals=tuple(
                    Interval(start_s=i, end_s=i + 1, transferred_bytes=100) for i in range(rows)
                ),
            ),
        ),
    )


def claim(cookie: str | None) -> Claim:
    return Claim(
        job_id="r.00000.00000", agent_id="c", phase=Phase.RUNNING, claimed_at=AT, cookie=cookie
    )


def report(outcome: Outcome, cookie: str | None = None) -> JobReport:
    return JobReport(
        job_id="r.00000.00000",
        run_id="r",
        burst_index=0,
        pair_index=0,
        agent_id="c",
        outcome=outcome,
        planned_start_at=AT,
        engine=EngineReport(engine="iperf3", cookie=cookie) if cookie else None,
        reported_at=AT,
    )


def test_the_cookie_joins_whatever_the_port_says() -> None:
    joined = join_tests(
        BURST,
        [pair(0), pair(1)],
        {1: claim("b")},
        {0: report(Outcome.MEASURED, "a")},
        [record(5202, "a"), record(5201, "b")],
    )
    assert {index: rec.test.cookie for index, rec in joined.records.items()} == {0: "a", 1: "b"}
    assert set(joined.joined_by.values()) == {Joined.COOKIE}
    assert joined.strays == ()


def test_a_client_that_died_nameless_is_joined_by_endpoint() -> None:
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [record(5201, "x")])
    assert joined.joined_by == {0: Joined.ENDPOINT}


def test_tests_of_other_bursts_stay_strays() -> None:
    before = record(5201, "old", started_s=-25.0)
    after = record(5201, "new", started_s=12.0)
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [before, after])
    assert joined.records == {}
    assert len(joined.strays) == 2


def test_a_test_that_another_pair_named_is_not_taken_by_endpoint() -> None:
    joined = join_tests(BURST, [pair(0), pair(1)], {1: claim("x")}, {}, [record(5201, "x")])
    assert set(joined.records) == {1}


def test_a_pair_that_never_started_takes_nothing() -> None:
    joined = join_tests(
        BURST, [pair(0)], {}, {0: report(Outcome.REFUSED)}, [record(5201, "foreign")]
    )
    assert joined.records == {}


def test_the_fullest_record_of_a_test_stands_in_any_order() -> None:
    part, whole = record(5201, "a", rows=4, ended=False), record(5201, "a", rows=10)
    reports = {0: report(Outcome.MEASURED, "a")}
    for tests in ([part, whole], [whole, part]):
        joined = join_tests(BURST, [pair(0)], {}, reports, tests)
        assert joined.records[0] is whole
        assert joined.strays == ()


def test_unsynchronised_clocks_correct_nothing_and_bound_nothing() -> None:
    good = ClockReading(
        source=ClockSource.CHRONY, read_at=AT, synchronised=True, offset_s=0.01, bound_s=0.02
    )
    wild = good.model_copy(update={"synchronised": False, "offset_s": 9.0})
    assert clock_correction(good, wild, None) == (0.01, 0.02)
    assert clock_correction(wild) == (0.0, None)
