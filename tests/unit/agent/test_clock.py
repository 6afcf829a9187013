from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.agent.clock import (
    HOST_ERROR_S,
    STA_NANO,
    STA_UNSYNC,
    TIME_ERROR,
    clock_problem,
    has_hypervisor_clock,
    judge_timex,
    parse_tracking,
    read_clock,
)
from broadside.exchange.messages import ClockReading, ClockSource
from broadside.exchange.outage_log import utc_now

NOW_AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

# Output of chronyd 4.3 -x with `offset 0.005` at the server, which `chronyc tracking` calls "slow".
SLOW = (
    "7F000001,127.0.0.1,4,1795175952.126060525,0.004998744,-0.000000175,0.000000221,-0.022,-0.005,"
    "0.071,0.000005591,0.000001400,1.0,Normal\n"
)
LOCAL = (
    "7F7F0101,,3,1795175935.854579847,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,"
    "0.000000000,0.000000000,0.0,Normal\n"
)
UNSYNCHRONISED = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,"
    "1.000000000,0.0,Not synchronised\n"
)
# Output on an Azure VM, after Microsoft's page "Time sync for Linux VMs in Azure".
PHC = (
    "50484330,PHC0,3,1795175952.126060525,0.000000100,0.000000100,0.000000221,-0.022,-0.005,"
    "0.071,0.000000001,0.000001400,8.0,Normal\n"
)


def test_parses_offset_bound_and_reference() -> None:
    reading = parse_tracking(SLOW, NOW_AT)
    assert reading.source is ClockSource.CHRONY
    assert reading.synchronised
    # A slow clock is behind.
    assert reading.offset_s == pytest.approx(-0.004998744)
    assert reading.bound_s == pytest.approx(0.004998744 + 0.000001400 + 0.000005591 / 2)
    assert (reading.reference, reading.stratum) == ("127.0.0.1", 4)


def test_a_free_running_chronyd_has_no_bound() -> None:
    reading = parse_tracking(LOCAL, NOW_AT)
    assert (reading.synchronised, reading.bound_s, reading.reference) == (False, None, "7F7F0101")
    assert "free-running" in (clock_problem(reading, 10.0) or "")


@pytest.mark.parametrize(
    ("socket", "text", "has_boot_id"),
    [
        (None, LOCAL, True),
        ("127.0.0.1", LOCAL, True),
        ("/run/chrony/chronyd.sock", LOCAL, True),
        # It belongs to another container and cannot be used for this clock.
        ("172.31.77.2", LOCAL, True),
        (None, SLOW, True),
        # It reports an offset, so it can be used.
        ("127.0.0.1", SLOW, False),
    ],
)
async def test_kernel_clock_is_used_if_chronyd_is_free_running(
    socket: str | None, text: str, has_boot_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_: str | None) -> str:
        return text.replace("1795175952.126060525", f"{utc_now().timestamp():.9f}")

    monkeypatch.setattr("broadside.agent.clock._ask_chronyc", answer)
    state = TIME_ERROR
    monkeypatch.setattr(
        "broadside.agent.clock.read_kernel_clock",
        lambda now_at: judge_timex(state, STA_NANO, 0, 2_500, now_at),
    )
    reading = await read_clock(socket)
    assert (reading.boot_id is not None) is has_boot_id
    shared = clock_problem(reading, 0.05, reading.boot_id)
    assert (shared is None) is (has_boot_id or text is SLOW)
    if text is LOCAL:
        assert reading.bound_s is None
        state = 0
        assert (await read_clock(socket)).bound_s == pytest.approx(0.0025)


def test_unsynchronised_clock_has_no_bound() -> None:
    reading = parse_tracking(UNSYNCHRONISED, NOW_AT)
    assert (reading.synchronised, reading.bound_s, reading.offset_s) == (False, None, None)
    assert "not synchronised" in (clock_problem(reading, 0.05) or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "506 Cannot talk to daemon\n",
        SLOW.replace("0.000001400", "nan"),
        SLOW.replace("0.000001400", "inf"),
        SLOW.replace("0.000001400", "-1.0"),
        SLOW.replace("0.004998744", "x"),
        SLOW.rpartition(",")[0],
    ],
)
def test_invalid_output_is_an_unknown_clock(text: str) -> None:
    reading = parse_tracking(text, NOW_AT)
    assert reading.source is ClockSource.UNKNOWN
    assert "clock unknown" in (clock_problem(reading, 10.0) or "")


@given(st.text())
def test_parser_accepts_any_text_without_a_bound(text: str) -> None:
    assert parse_tracking(text, NOW_AT).bound_s is None


def test_kernel_bound_is_maxerror_plus_remaining_offset() -> None:
    reading = judge_timex(0, STA_NANO, 1500, 2500, NOW_AT)
    assert reading.source is ClockSource.ADJTIMEX
    assert reading.bound_s == pytest.approx(0.0025 + 1.5e-6)
    assert judge_timex(0, 0, -40_000, 500, NOW_AT).bound_s == pytest.approx(0.0405)
    assert reading.offset_s == pytest.approx(-1.5e-6)
    assert judge_timex(0, 0, 1500, 2500, NOW_AT).offset_s == pytest.approx(-1.5e-3)


@pytest.mark.parametrize(("state", "status"), [(TIME_ERROR, 0), (0, STA_UNSYNC)])
def test_an_undisciplined_kernel_clock_is_not_synchronised(state: int, status: int) -> None:
    reading = judge_timex(state, status, 0, 16_000_000, NOW_AT)
    assert (reading.synchronised, reading.bound_s) == (False, None)


def test_a_failed_adjtimex_is_an_unknown_clock() -> None:
    assert judge_timex(-1, 0, 0, 0, NOW_AT).source is ClockSource.UNKNOWN


def test_clock_problem_has_value_limit_and_fix() -> None:
    def reading(bound_s: float) -> ClockReading:
        return ClockReading(
            source=ClockSource.CHRONY, read_at=NOW_AT, synchronised=True, bound_s=bound_s
        )

    assert clock_problem(reading(0.05), 0.05) is None
    problem = clock_problem(reading(0.051), 0.05) or ""
    assert "51.000 ms" in problem
    assert "50.000 ms" in problem
    assert "clock_bound_max_s" in problem


def test_shared_clock_passes_with_any_offset() -> None:
    reading = judge_timex(TIME_ERROR, STA_UNSYNC, 0, 16_000_000, NOW_AT)
    here = reading.model_copy(update={"boot_id": "this-boot"})
    assert clock_problem(here, 0.05, "this-boot") is None
    assert "not synchronised" in (clock_problem(here, 0.05, "another") or "")
    assert "not synchronised" in (clock_problem(reading, 0.05, "this-boot") or "")


@pytest.mark.parametrize(
    "text",
    [
        # The local clock driver in ntpd.
        LOCAL.replace("7F7F0101", "7F7F0100"),
        # Default stratum of `local` and of `local orphan`.
        LOCAL.replace(",3,", ",10,"),
        SLOW.replace(",4,", ",16,"),
        SLOW.replace(",4,", ",0,"),
        SLOW.replace("Normal", "Not synchronised"),
        SLOW.replace("Normal", "something new"),
    ],
)
def test_undisciplined_clock_has_no_bound(text: str) -> None:
    reading = parse_tracking(text, NOW_AT)
    assert (reading.synchronised, reading.bound_s, reading.offset_s) == (False, None, None)
    assert clock_problem(reading, 10.0)


@pytest.mark.parametrize(
    ("silence", "least_s", "most_s"),
    [
        # One missed update should be accepted.
        (timedelta(seconds=100), 0.0, 0.006),
        (timedelta(hours=1), 0.05, 0.06),
        (timedelta(days=1), 1.2, 1.4),  # 86,400 s x 15 ppm
    ],
)
def test_bound_grows_without_updates(silence: timedelta, least_s: float, most_s: float) -> None:
    bound_s = parse_tracking(SLOW, NOW_AT + silence).bound_s
    assert bound_s is not None
    assert least_s <= bound_s <= most_s


def test_bound_includes_the_hypervisor_clock_error() -> None:
    figures_s = 1e-7 + 1.4e-6 + 5e-10
    phc = parse_tracking(PHC, NOW_AT)
    assert phc.bound_s == pytest.approx(figures_s + HOST_ERROR_S)
    renamed = PHC.replace("50484330,PHC0", "48595052,HYPR")
    assert parse_tracking(renamed, NOW_AT).bound_s == pytest.approx(figures_s)
    assert parse_tracking(renamed, NOW_AT, on_host_clock=True).bound_s == phc.bound_s
    # A server address is not a reference clock, even if the kernel has one.
    server = parse_tracking(SLOW, NOW_AT, on_host_clock=True)
    assert server.bound_s == parse_tracking(SLOW, NOW_AT).bound_s


async def test_kernel_bound_includes_the_hypervisor_clock_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_answer(_: str | None) -> None:
        return None

    monkeypatch.setattr("broadside.agent.clock._ask_chronyc", no_answer)
    monkeypatch.setattr(
        "broadside.agent.clock.read_kernel_clock",
        lambda now_at: judge_timex(0, STA_NANO, 0, 2_500, now_at),
    )
    for has, bound_s in ((False, 0.0025), (True, 0.0025 + HOST_ERROR_S)):
        monkeypatch.setattr("broadside.agent.clock.has_hypervisor_clock", lambda has=has: has)
        assert (await read_clock()).bound_s == pytest.approx(bound_s)


@pytest.mark.parametrize(
    ("name", "expected"), [("hyperv\n", True), ("KVM virtual PTP\n", True), ("mlx5_ptp\n", False)]
)
def test_hypervisor_clock_is_recognised_by_name(name: str, expected: bool, tmp_path: Path) -> None:
    assert has_hypervisor_clock(tmp_path) is False
    (tmp_path / "ptp1").mkdir()
    (tmp_path / "ptp1" / "clock_name").write_text(name)
    assert has_hypervisor_clock(tmp_path) is expected
