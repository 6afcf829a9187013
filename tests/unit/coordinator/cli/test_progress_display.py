"""Tests for progress of long commands."""

import sys
import threading
from datetime import UTC, datetime

import pytest

from broadside.coordinator.cli import progress_display
from broadside.coordinator.cli.progress_display import end_text, print_expected_end, show_progress


@pytest.mark.parametrize(
    ("elapsed_s", "done_ratio", "limit_s", "text"),
    [
        (30.0, 0.25, None, "30 s, ends at about 12:01:30Z"),
        # The progress is better than the limit.
        (30.0, 0.5, 600.0, "30 s, ends at about 12:00:30Z"),
        (30.0, 0.0, 600.0, "30 s, ends at the latest 12:09:30Z"),
        (700.0, 0.0, 600.0, "700 s, ends at the latest 12:00:00Z"),
        (30.0, 0.0, None, "30 s"),
        (30.0, 1.0, None, "30 s"),
    ],
)
def test_end_follows_from_progress_or_limit(
    elapsed_s: float,
    done_ratio: float,
    limit_s: float | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_display, "utc_now", lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))
    assert end_text(elapsed_s, done_ratio, limit_s) == text


@pytest.mark.parametrize(
    ("elapsed_s", "done_ratio", "text"),
    [
        (10.0, 0.0, "10 s, ends at about 12:00:20Z"),
        # The progress is more exact than the usual duration.
        (10.0, 0.5, "10 s, ends at about 12:00:10Z"),
        (40.0, 0.0, "40 s, ends at the latest 12:00:20Z"),
    ],
)
def test_end_follows_from_usual_duration_until_it_is_over(
    elapsed_s: float, done_ratio: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "utc_now", lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))
    assert end_text(elapsed_s, done_ratio, limit_s=60.0, expected_s=30.0) == text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_expected_end_is_printed_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(progress_display, "utc_now", lambda: datetime(2026, 11, 20, 12, tzinfo=UTC))
    print_expected_end("terraform", 25)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert ("25 minutes, until about 12:25:00Z" in printed.err) == is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "term", "is_shown"),
    [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)],
)
def test_progress_is_shown_on_a_terminal_on_standard_error(
    is_terminal: bool,
    term: str,
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(progress_display, "_DELAY_S", 0.0)
    with show_progress("copying", 4) as advance:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
        advance(1)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert ("copying" in printed.err) == is_shown
