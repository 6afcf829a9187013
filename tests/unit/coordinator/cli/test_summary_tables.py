"""Tests for the summary printed to a terminal."""

from datetime import timedelta

import numpy as np
import pytest

from broadside.coordinator.cli.summary_tables import print_summary
from broadside.coordinator.core.measure.latency import find_latency
from tests.unit.coordinator.core.measure.test_latency import BURST, column
from tests.unit.coordinator.views.charts.views import FAULTY, ended


def shown(rtt_s: float, capsys: pytest.CaptureFixture[str], **at: float) -> str:
    """Return the summary printed for a run with latency probes in the first burst."""
    *_, summary = ended(FAULTY)
    latency, _ = find_latency(BURST, {0: column(rtt_s, **at)})
    assert latency is not None
    first, *others = summary.bursts
    update = {
        "bursts": (first.model_copy(update={"latency": latency}), *others),
        "probe_p99_s": latency.fleet.during.p99_s,
        "probe_loss_ratio": latency.fleet.during.loss_ratio,
    }
    print_summary(summary.model_copy(update=update))
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_prints_probe_latency_before_during_and_after_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(0.001, capsys, s20_120=0.004, s120_140=0.002)
    assert "1 / 4 / 2" in text and "300 %" in text


def test_prints_lost_probes_without_latency(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in shown(np.nan, capsys).splitlines() if "probes under load" in line]
    assert any("lost" in line and "100.00 %" in line for line in lines)
    # The latency is unknown, which is not the same as zero.
    assert not any("p99" in line for line in lines)


def starts(interval: timedelta, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the start times printed for two bursts."""
    *_, summary = ended(FAULTY)
    first, second, *_ = summary.bursts
    later = second.model_copy(update={"planned_start_at": first.planned_start_at + interval})
    print_summary(summary.model_copy(update={"bursts": (first, later)}))
    pairs = f"{first.pairs_measured}/{first.pairs_planned}"
    lines = [line for line in capsys.readouterr().out.splitlines() if pairs in line]
    return [line.partition(" ")[2].partition(pairs)[0].strip() for line in lines]


def test_prints_dates_of_bursts_on_different_days(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert starts(timedelta(hours=1), capsys) == ["12:00:00", "13:00:00"]
    assert starts(timedelta(hours=24), capsys) == ["2026-11-20 12:00:00", "2026-11-21 12:00:00"]


def test_prints_scale_of_a_scaled_run(capsys: pytest.CaptureFixture[str]) -> None:
    *_, summary = ended(FAULTY)
    print_summary(summary.model_copy(update={"scale": 100}))
    out = capsys.readouterr().out
    assert "lab at 1:100" in out
    assert "at real scale" in out
    assert "pairs measured" in out
