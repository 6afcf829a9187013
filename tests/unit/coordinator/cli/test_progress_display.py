"""Tests for progress of long commands."""

import sys
import threading
from datetime import UTC, datetime

import pytest

from broadside.coordinator.cli import progress_display
from broadside.coordinator.cli.progress_display import end_text, show_progress


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
        started = threading.Event()
        started.wait(0.05)
        advance(1)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert ("copying" in printed.err) == is_shown
