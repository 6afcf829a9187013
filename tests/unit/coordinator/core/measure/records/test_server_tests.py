"""Tests that match tests of servers to pairs."""

from dataclasses import replace

import pytest

from broadside.coordinator.core.measure.records.server_tests import (
    foreign_tests_during,
    is_unsent,
    join_tests,
)
from broadside.coordinator.core.run_spec import Pair
from broadside.coordinator.core.summary import MatchMethod
from broadside.exchange.messages import (
    Claim,
    Endpoint,
    EngineReport,
    JobPhase,
    JobReport,
    Outcome,
)
from tests.unit.coordinator.core.measure.records.test_evidence import AT, BURST, pair, record
from tests.unit.coordinator.core.records import job_report


def claim(cookie: str | None, *, address: str | None = None) -> Claim:
    return Claim(
        job_id="r.00000.00000",
        agent_id="c",
        phase=JobPhase.RUNNING,
        claimed_at=AT,
        cookie=cookie,
        address=address,
    )


def report(outcome: Outcome, cookie: str | None = None) -> JobReport:
    engine = EngineReport(engine="iperf3", cookie=cookie) if cookie else None
    return job_report(0, AT, outcome=outcome, engine=engine)


def test_matches_by_cookie_on_an_unplanned_endpoint() -> None:
    moved = record(5299, "a")
    joined = join_tests(BURST, [pair(0)], {}, {0: report(Outcome.MEASURED, "a")}, [moved])
    assert joined.records == {0: moved}
    assert joined.joined_by == {0: MatchMethod.COOKIE}
    assert joined.foreign_tests == ()


def test_cookie_on_the_endpoint_of_another_pair_is_foreign() -> None:
    reports = {0: report(Outcome.MEASURED, "a")}
    swapped = [record(5202, "a"), record(5201, "b")]
    joined = join_tests(BURST, [pair(0), pair(1)], {1: claim("b")}, reports, swapped)
    assert joined.records == {}
    assert {
        result.pair_index for result in foreign_tests_during(BURST, [pair(0), pair(1)], swapped)
    } == {
        0,
        1,
    }


def test_ignores_records_of_other_agents() -> None:
    """A record from another server should not make a lost pair *measured* (S2, November 2026)."""
    for local, claims, reports in (
        # This would be matched by cookie.
        (record(5201, "a"), {}, {0: report(Outcome.MEASURED, "a")}),
        # This would be matched by endpoint.
        (record(5201, None), {0: claim(None)}, {}),
    ):
        rogue = replace(local, test=local.test.model_copy(update={"agent_id": "rogue"}))
        assert join_tests(BURST, [pair(0)], claims, reports, [rogue]).records == {}
        assert join_tests(BURST, [pair(0)], claims, reports, [rogue, local]).records == {0: local}


def test_two_pairs_with_one_endpoint_use_records_of_their_servers() -> None:
    """If two servers use the same endpoint, both get their own records (S3, November 2026)."""
    twin = Pair(index=1, endpoint=pair(0).endpoint.model_copy(update={"agent_id": "twin"}))
    local = record(5201, "a")
    theirs = replace(local, test=local.test.model_copy(update={"agent_id": "twin"}))
    reports = {0: report(Outcome.MEASURED, "a"), 1: report(Outcome.MEASURED, "a")}
    for pairs in ([pair(0), twin], [twin, pair(0)]):
        joined = join_tests(BURST, pairs, {}, reports, [local])
        assert joined.records == {0: local}
        joined = join_tests(BURST, pairs, {}, reports, [theirs, local])
        assert joined.records == {0: local, 1: theirs}


def test_matches_dead_client_without_cookie_by_endpoint_and_address() -> None:
    test = record(5201, "x", client="10.1.0.4")
    for address, joins in (("10.1.0.4", True), ("10.1.0.5", False), (None, False)):
        claims = {0: claim(None, address=address)}
        joined = join_tests(BURST, [pair(0)], claims, {}, [test])
        assert (joined.joined_by == {0: MatchMethod.ENDPOINT}) is joins
        assert len(joined.foreign_tests) == (not joins)


def test_matches_engine_without_cookies_by_endpoint() -> None:
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [record(5201, None)])
    assert joined.joined_by == {0: MatchMethod.ENDPOINT}


def test_client_with_a_cookie_matches_no_other_test() -> None:
    reports = {0: report(Outcome.MEASURED, "mine")}
    joined = join_tests(BURST, [pair(0)], {}, reports, [record(5201, "strange")])
    assert joined.records == {}
    assert len(joined.foreign_tests) == 1


def test_client_that_failed_without_a_byte_matches_nothing() -> None:
    """If two runs use the same server, it will be busy for one of them."""
    failed = report(Outcome.FAILED).model_copy(update={"reason": "the server is busy"})
    theirs = record(5201, "theirs", client="10.9.0.4")
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {0: failed}, [theirs])
    assert joined.records == {}
    (result,) = foreign_tests_during(BURST, [pair(0)], joined.foreign_tests)
    assert (result.pair_index, result.client_address, result.received_bytes) == (
        0,
        "10.9.0.4",
        1000,
    )
    partial_report = failed.model_copy(update={"first_data_at": AT})
    assert not is_unsent(partial_report)


@pytest.mark.parametrize("seen", ["10.99.0.1", "10.1.0.5", "::ffff:10.1.0.5", None])
def test_matches_by_cookie_despite_address_translation(seen: str | None) -> None:
    """The address can be that of another client, if this client is the device that translates."""
    claims = {0: claim("a", address="10.1.0.4"), 1: claim(None, address="10.1.0.5")}
    translated = record(5201, "a", client=seen)
    joined = join_tests(BURST, [pair(0), pair(1)], claims, {}, [translated])
    assert joined.joined_by == {0: MatchMethod.COOKIE}


def job_claim(index: int, *, address: str | None = None) -> Claim:
    return claim(None, address=address).model_copy(update={"job_id": job_id(index)})


def job_id(index: int) -> str:
    return f"r.00000.{index:05d}"


@pytest.mark.parametrize("seen", ["10.1.0.4", "10.99.0.1", "10.1.0.5", None])
def test_matches_daemon_test_by_the_job_in_its_requests(seen: str | None) -> None:
    """This is possible even if the client died and only its claim exists."""
    claims = {index: job_claim(index, address=f"10.1.0.{4 + index}") for index in (0, 1)}
    tests = [record(5201, job_id(0), client=seen), record(5202, job_id(1), client=seen)]
    joined = join_tests(BURST, [pair(0), pair(1)], claims, {}, tests)
    assert joined.joined_by == {0: MatchMethod.COOKIE, 1: MatchMethod.COOKIE}
    assert [joined.records[index].test.cookie for index in (0, 1)] == [job_id(0), job_id(1)]
    assert joined.foreign_tests == ()


def test_test_with_another_job_matches_no_pair() -> None:
    """The client, endpoint and time match, but not the job."""
    theirs = record(5201, "other-run.00000.00000", client="10.1.0.4")
    claims = {0: job_claim(0, address="10.1.0.4")}
    joined = join_tests(BURST, [pair(0)], claims, {}, [theirs])
    assert joined.records == {}
    assert joined.foreign_tests == (theirs,)


def test_restarted_daemon_leaves_no_foreign_test() -> None:
    part, rest = record(5201, job_id(0), rows=4), record(5201, job_id(0), started_s=4, rows=6)
    joined = join_tests(BURST, [pair(0)], {0: job_claim(0)}, {}, [part, rest])
    assert joined.records == {0: rest}
    assert joined.foreign_tests == ()


def test_matches_server_of_the_previous_version_by_endpoint() -> None:
    """The daemon will not record a cookie, even if the client sends the job."""
    reports = {0: report(Outcome.MEASURED, job_id(0))}
    joined = join_tests(BURST, [pair(0)], {0: job_claim(0)}, reports, [record(5201, None)])
    assert joined.joined_by == {0: MatchMethod.ENDPOINT}


def test_tests_of_other_bursts_remain_unmatched() -> None:
    before = record(5201, "old", started_s=-25.0)
    after = record(5201, "new", started_s=12.0)
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [before, after])
    assert joined.records == {}
    assert len(joined.foreign_tests) == 2


def test_endpoint_does_not_match_a_test_of_another_pair() -> None:
    joined = join_tests(BURST, [pair(0), pair(1)], {1: claim("x")}, {}, [record(5202, "x")])
    assert set(joined.records) == {1}


def test_pair_that_never_started_matches_nothing() -> None:
    joined = join_tests(
        BURST, [pair(0)], {}, {0: report(Outcome.REFUSED)}, [record(5201, "foreign")]
    )
    assert joined.records == {}


def test_uses_the_most_complete_record_in_any_order() -> None:
    part, complete = record(5201, "a", rows=4, ended=False), record(5201, "a", rows=10)
    reports = {0: report(Outcome.MEASURED, "a")}
    for tests in ([part, complete], [complete, part]):
        joined = join_tests(BURST, [pair(0)], {}, reports, tests)
        assert joined.records[0] is complete
        assert joined.foreign_tests == ()


def test_pair_of_processes_needs_tests_on_all_ports() -> None:
    endpoint = Endpoint(agent_id="s", address="10.2.0.4", port=5201, more_ports=(5202,))
    two = [Pair(index=0, endpoint=endpoint)]
    engine = EngineReport(
        engine="iperf3",
        processes=tuple(EngineReport(engine="iperf3", cookie=name) for name in ("a", "b")),
    )
    reports = {0: job_report(0, AT, engine=engine)}
    tests = [record(5201, "a"), record(5202, "b")]
    complete = join_tests(BURST, two, {}, reports, tests)
    assert complete.records[0].tracks[0].transferred_bytes.sum() == pytest.approx(2000)
    assert complete.joined_by == {0: MatchMethod.COOKIE}
    part = join_tests(BURST, two, {}, reports, tests[:1])
    assert (part.records, part.joined_by, part.foreign_tests) == ({}, {}, ())


@pytest.mark.parametrize("outcome", [Outcome.MISSED, Outcome.REFUSED])
def test_pair_that_sent_nothing_matches_no_test(outcome: Outcome) -> None:
    tests = [record(5201, "cookie")]
    joined = join_tests(BURST, [pair(0)], {}, {0: report(outcome, "cookie")}, tests)
    assert joined.records == {}
    assert list(joined.foreign_tests) == tests


def test_matches_the_test_nearest_to_the_start() -> None:
    far, near = record(5201, None, started_s=4.0), record(5201, None, started_s=1.0)
    joined = join_tests(BURST, [pair(0)], {0: claim(None)}, {}, [far, near])
    assert joined.records == {0: near}
    assert joined.joined_by == {0: MatchMethod.ENDPOINT}
