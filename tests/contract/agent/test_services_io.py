"""Tests for services that need processes, sockets or real time."""

from tests.unit.agent import test_services
from tests.unit.agent.test_services import Served, at

# Fixtures.
served = test_services.served

JOB = "r1.00000.00000"


async def test_requests_of_one_job_are_one_test(
    served: Served,
) -> None:
    # A foreign connection, before the burst.
    served.update(connected=True)
    for number in range(30):
        # Connections without keep-alive.
        served.update(connected=number % 2 == 0)
        served.request(JOB)
        served.reader.feed(b"1000000.000 1.000 200 9999 10.1.0.9 -", served.now_s)
        await served.save()
        assert served.port.busy and not served.port.free
    (partial,) = await served.saved_tests()
    assert partial.ended_at is None
    await served.save(after_s=2)
    (test,) = await served.saved_tests()
    assert (test.cookie, test.engine.totals[0].sent_bytes) == (JOB, 30_000)
    assert test.ended_at == at(served.now_s - 2)
    assert served.port.free


async def test_pause_does_not_split_a_test(served: Served) -> None:
    """Test a pause that is longer than any request. It can be caused by packet loss."""
    served.request(JOB)
    await served.save()
    await served.save(after_s=5)
    (first,) = await served.saved_tests()
    assert first.ended_at is not None
    served.request(JOB)
    await served.save()
    await served.save(after_s=5)
    (test,) = await served.saved_tests()
    assert test.started_at == first.started_at
    assert test.engine.totals[0].sent_bytes == 2000
    assert test.ended_at is not None and test.ended_at > first.ended_at


async def test_test_stays_open_during_a_long_transfer(served: Served) -> None:
    """Test a long transfer, which will not be in the log before it has ended."""
    served.request(JOB)
    for _ in range(16):
        served.update(connected=True)
        await served.save()
    (partial,) = await served.saved_tests()
    assert partial.ended_at is None
    # The transfer has ended, but its log line has not arrived.
    served.update(connected=False)
    await served.save()
    served.request(JOB, sent=9000, took_s=8)
    await served.save()
    served.update(connected=False, after_s=8)
    await served.save()
    (test,) = await served.saved_tests()
    assert (test.ended_at is not None, test.engine.totals[0].sent_bytes) == (True, 10_000)


async def test_endless_connection_does_not_block_the_test(
    served: Served,
) -> None:
    served.request(JOB)
    for _ in range(60):
        served.update(connected=True)
        await served.save()
    (test,) = await served.saved_tests()
    assert test.ended_at is not None
    assert served.port.free


async def test_two_tests_at_once_are_two_records(served: Served) -> None:
    for job in (JOB, "r2.00000.00007"):
        served.request(job)
    await served.save(after_s=3)
    assert [test.cookie for test in await served.saved_tests()] == [JOB, "r2.00000.00007"]


async def test_request_without_known_time_is_stored_without_seconds(served: Served) -> None:
    served.request(JOB, took_s=3600)
    await served.save(after_s=3)
    (test,) = await served.saved_tests()
    assert [measure.name for measure in test.engine.measures][1] == "server_unplaced_count"
    assert test.first_data_at is None


async def test_daemon_exit_ends_its_tests(served: Served) -> None:
    served.request(JOB)
    await served.save(ended=True)
    (test,) = await served.saved_tests()
    assert test.ended_at is not None


async def test_cpu_time_is_counted_between_samples_around_the_test(
    served: Served,
) -> None:
    async def serve(job: str, before_s: float, at_end_s: float, *, stopped: bool) -> None:
        served.used_s = before_s
        served.update(connected=False)
        served.now_s += 1
        # Half a second will have passed at the next sample.
        served.used_s = before_s + 1.0
        served.request(job)
        served.update(connected=True)
        served.used_s = at_end_s
        if stopped:
            served.port.bind("10.1.1.2")
            # The process has ended.
            served.used_s = 0.0
        await served.save(after_s=5, ended=stopped)

    await serve("r1.00000.00000", 0.25, 3.25, stopped=False)
    served.update(connected=False)
    await serve("r2.00000.00000", 3.25, 7.75, stopped=True)
    assert [test.engine.cpu_s for test in await served.saved_tests()] == [3.0, 4.5]


async def test_cpu_time_excludes_an_earlier_foreign_download(served: Served) -> None:
    served.update(connected=False)
    served.update(connected=True)
    # CPU time used for the foreign download.
    served.used_s = 60.25
    served.update(connected=False, after_s=30)
    served.now_s += 1
    served.request(JOB)
    served.update(connected=True)
    served.used_s = 63.25
    await served.save(after_s=5)
    (test,) = await served.saved_tests()
    assert test.engine.cpu_s == 3.0
