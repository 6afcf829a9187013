"""Server-side tests find their pairs: by cookie, else by endpoint and time, each once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from broadside.coordinator.core.measure.columns import NO_HOST
from broadside.coordinator.core.measure.evidence import (
    Summed,
    clock_correction,
    is_unsent,
    join_tests,
    strays_during,
)
from broadside.coordinator.core.plan.spec import Burst, Pair
from broadside.coordinator.core.summary import Joined
from broadside.exchange.messages import (
    Claim,
    ClockReading,
    ClockSource,
    Endpoint,
    EngineReport,
    JobReport,
    Outcome,
    Phase,
    ServerTest,
    Side,
)
from tests.unit.coordinator.core.records import job_report, seconds

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BURST = Burst(index=0, planned_start_at=AT, duration_s=10)


def pair(index: int) -> Pair:
    return Pair(index=index, endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=5201 + index))


def record(
    port: int,
    cookie: str | None,
    *,
    started_s: float = -3.0,
    rows: int = 10,
    ended: bool = True,
    client: str | None = None,
) -> Summed:
    started_at = AT + timedelta(seconds=started_s)
    return Summed(
        test=ServerTest(
            agent_id="s",
            endpoint=Endpoint(agent_id="s", address="10.2.0.4", port=port),
            client_address=client,
            started_at=started_at,
            first_data_at=max(AT, started_at) if started_s > -20 else started_at,
            ended_at=started_at + timedelta(seconds=14) if ended else None,
            engine=EngineReport(engine="iperf3", cookie=cookie),
        ),
        tracks=(seconds(Side.SERVER, AT.timestamp(), [100] * rows),),
        host=NO_HOST,
    )


def claim(cookie: str | None, *, address: str | None = None) -> Claim:
    return Claim(
        job_id="r.00000.00000",
        agent_id="c",
        phase=Phase.RUNNING,
        claimed_at=AT,
        cookie=cookie,
        address=address,
    )


def report(outcome: Outcome, cookie: str | None = None) -> JobReport:
    engine = EngineReport(engine="iperf3", cookie=cookie) if cookie else None
    return job_report(0, AT, outcome=outcome, engine=engine)


def test_the_cookie_joins_at_an_endpoint_that_is_no_other_pairs() -> None:
    moved = record(5299, "a")
    joined = join_tests(BURST, [pair(0)], {}, {0: report(Outcome.MEASURED, "a")}, [moved])
    assert joined.records == {0: moved}
    assert joined.joined_by == {0: Joined.COOKIE}
    assert joined.strays == ()


def test_a_cookie_on_another_pairs_endpoint_is_a_stray() -> None:
    reports = {0: report(Outcome.MEASURED, "a")}
    swapped = [record(5202, "a"), record(5201, "b")]
    joined = join_tests(BURST, [pair(0), pair(1)], {1: claim("b")}, reports, swapped)
    assert joined.records == {}
    assert {found.pair_index for found in strays_during(BURST, [pair(0), pair(1)], swapped)} == {
        0,
        1,
    }


def test_only_the_planned_agent_records_a_pairs_test() -> None:
    """S2 of November 2026: a pair that was lost became *measured* by another server's record."""
    forged = record(5201, "a")
    rogue = replace(forged, test=forged.test.model_copy(update={"agent_id": "rogue"}))
    for claims, reports in (
        ({}, {0: report(Outcome.MEASURED, "a")}),  # by cookie
        ({0: claim(None)}, {}),  # by endpoint
    ):
        assert join_tests(BURST, [pair(0)], claims, reports, [rogue]).records == {}
        assert join_tests(BURST, [pair(0)], claims, reports, [rogue, forged]).records == {0: forged}


def test_two_pairs_with_one_endpoint_keep_their_own_servers_records() -> None:
    """S3 of November 2026: of two servers that announced one endpoint, the last took all."""
    twin = Pair(index=1, endpoint=pair(0).endpoint.model_copy(update={"agent_id": "twin"}))
    own = record(5201, "a")
    theirs = replace(own, test=own.test.model_copy(update={"agent_id": "twin"}))
    reports = {0: report(Outcome.MEASURED, "a"), 1: report(Outcome.MEASURED, "a")}
    for pairs in ([pair(0), twin], [twin, pair(0)]):
        joined = join_tests(BURST, pairs, {}, reports, [own])
        assert joined.records == {0: own}
        joined = join_tests(BURST, pairs, {}, reports, [theirs, own])
        assert joined.records == {0: own, 1: theirs}


def test_a_client_that_died_nameless_is_joined_by_endpoint_and_address() -> None:
    test = record(5201, "x", client="10.1.0.4")
    for address, joins in (("10.1.0.4", True), ("10.1.0.5", False), (None, False)):
        claims = {0: claim(None, address=address)}
        joined = join_tests(BURST, [pair(0)], claims, {}, [test])
        assert (joined.joined_by == {0: Joined.ENDPOINT}) is joins
        assert len(joined.strays) == (not joins)


def test_an_engine_without_cookies_is_joined_by_endpoint() -> None:
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [record(5201, None)])
    assert joined.joined_by == {0: Joined.ENDPOINT}


def test_a_client_that_named_its_test_takes_no_other() -> None:
    reports = {0: report(Outcome.MEASURED, "mine")}
    joined = join_tests(BURST, [pair(0)], {}, reports, [record(5201, "strange")])
    assert joined.records == {}
    assert len(joined.strays) == 1


def test_a_client_that_failed_without_a_byte_takes_nothing() -> None:
    """As of two runs on one server: one is told that it is busy, the other's test is there."""
    failed = report(Outcome.FAILED).model_copy(update={"reason": "the server is busy"})
    theirs = record(5201, "theirs", client="10.9.0.4")
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {0: failed}, [theirs])
    assert joined.records == {}
    (found,) = strays_during(BURST, [pair(0)], joined.strays)
    assert (found.pair_index, found.client_address, found.received_bytes) == (0, "10.9.0.4", 1000)
    halfway = failed.model_copy(update={"first_data_at": AT})
    assert not is_unsent(halfway)


@pytest.mark.parametrize("seen", ["10.99.0.1", "10.1.0.5", "::ffff:10.1.0.5", None])
def test_a_cookie_joins_whatever_address_the_path_has_made_of_the_client(seen: str | None) -> None:
    """Another client's too: that one may be the device that translates."""
    claims = {0: claim("a", address="10.1.0.4"), 1: claim(None, address="10.1.0.5")}
    translated = record(5201, "a", client=seen)
    joined = join_tests(BURST, [pair(0), pair(1)], claims, {}, [translated])
    assert joined.joined_by == {0: Joined.COOKIE}


def job_claim(index: int, *, address: str | None = None) -> Claim:
    return claim(None, address=address).model_copy(update={"job_id": job_id(index)})


def job_id(index: int) -> str:
    return f"r.00000.{index:05d}"


@pytest.mark.parametrize("seen", ["10.1.0.4", "10.99.0.1", "10.1.0.5", None])
def test_a_daemons_test_is_joined_by_the_job_that_its_requests_name(seen: str | None) -> None:
    """Also of a client that died before it said anything but its claim."""
    claims = {index: job_claim(index, address=f"10.1.0.{4 + index}") for index in (0, 1)}
    tests = [record(5201, job_id(0), client=seen), record(5202, job_id(1), client=seen)]
    joined = join_tests(BURST, [pair(0), pair(1)], claims, {}, tests)
    assert joined.joined_by == {0: Joined.COOKIE, 1: Joined.COOKIE}
    assert [joined.records[index].test.cookie for index in (0, 1)] == [job_id(0), job_id(1)]
    assert joined.strays == ()


def test_a_test_that_names_another_job_is_taken_by_no_pair() -> None:
    """From the pair's own client, on its own endpoint, at its own time."""
    theirs = record(5201, "other-run.00000.00000", client="10.1.0.4")
    claims = {0: job_claim(0, address="10.1.0.4")}
    joined = join_tests(BURST, [pair(0)], claims, {}, [theirs])
    assert joined.records == {}
    assert joined.strays == (theirs,)


def test_a_daemon_that_was_started_again_leaves_no_test_of_strangers() -> None:
    part, rest = record(5201, job_id(0), rows=4), record(5201, job_id(0), started_s=4, rows=6)
    joined = join_tests(BURST, [pair(0)], {0: job_claim(0)}, {}, [part, rest])
    assert joined.records == {0: rest}
    assert joined.strays == ()


def test_a_server_of_the_version_before_is_joined_by_endpoint() -> None:
    """Its daemon's records have no cookie; a client of this version names the job."""
    reports = {0: report(Outcome.MEASURED, job_id(0))}
    joined = join_tests(BURST, [pair(0)], {0: job_claim(0)}, reports, [record(5201, None)])
    assert joined.joined_by == {0: Joined.ENDPOINT}


def test_tests_that_were_over_or_not_begun_are_no_strays_of_the_burst() -> None:
    before, after = record(5201, "old", started_s=-25.0), record(5201, "new", started_s=12.0)
    assert strays_during(BURST, [pair(0)], [before, after, record(5999, "elsewhere")]) == ()


def test_tests_of_other_bursts_stay_strays() -> None:
    before = record(5201, "old", started_s=-25.0)
    after = record(5201, "new", started_s=12.0)
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [before, after])
    assert joined.records == {}
    assert len(joined.strays) == 2


def test_a_test_that_another_pair_named_is_not_taken_by_endpoint() -> None:
    joined = join_tests(BURST, [pair(0), pair(1)], {1: claim("x")}, {}, [record(5202, "x")])
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
