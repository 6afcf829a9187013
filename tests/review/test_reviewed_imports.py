"""Findings about imports of user files through the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.review.fleets import IP_RATIO, START_S, Floats, steady
from tests.review.user_files import iperf3_file, metric, printed, table_of_means
from tests.review.versions import Answers, Versions

CLIENT, SERVER = "client.json", "server.json"
PERIOD_S = 300


def imported(versions: Versions, *argv: str) -> Answers:
    """Return the output of an import in both versions."""
    answers = versions.ask("command", "import", *argv, "--output=json")
    return Answers(*(printed(answer) for answer in answers))


def ids(summary: Any) -> set[str]:
    return {finding["id"] for finding in summary["findings"]}


@pytest.mark.parametrize("reading_s", [30, 60])
def test_m1_detects_slow_third_in_senders_readings(
    versions: Versions, tmp_path: Path, reading_s: int
) -> None:
    """Import server readings of 30 or 60 s at a rate that is halved for 20 of 60 s.

    At 6cca7b45: pass. It treated the means of the readings as seconds.
    """
    rate = steady(1, 60, 10e6, noise=0.01)[0]
    rate[20:40] *= 0.5
    files = (
        iperf3_file(tmp_path / CLIENT, rate, sends=True),
        iperf3_file(tmp_path / SERVER, rate, sends=False, reading_s=reading_s),
    )
    reviewed, today = imported(
        versions, "iperf3", *files, "--set", "objective.target_bits_per_second=8.4e6"
    )
    assert reviewed["verdict"] == "pass"
    assert today["verdict"] == "inconclusive"
    assert "slow-stretch" in ids(today)


@pytest.mark.parametrize("off_s", [-20, -5, 20, 3600])
def test_m2_aligns_clocks_of_both_ends(versions: Versions, tmp_path: Path, off_s: int) -> None:
    """Import both ends of one test with a wrong server clock and a slow start of 20 s.

    At 6cca7b45, 20 s behind: pass, 10 Mbit/s received and 5.5 Mbit/s sent. 5 s behind: 7.5 and 6.7
    Mbit/s. One hour ahead: no rate. It never reported the difference of the clocks.
    """
    rate = np.full(60, 10e6)
    rate[:20] = 1e6
    files = (
        iperf3_file(tmp_path / CLIENT, rate, sends=True),
        iperf3_file(tmp_path / SERVER, rate, sends=False, began_at_s=START_S + off_s),
    )
    reviewed, today = imported(
        versions, "iperf3", *files, "--set", "objective.target_bits_per_second=9.5e6"
    )
    assert reviewed["verdict"] == ("pass" if off_s == -20 else "inconclusive")
    assert reviewed["bursts"][0]["fleet_received_bits_per_second"] != pytest.approx(7e6, rel=0.01)
    assert "clocks-apart" not in ids(reviewed)
    assert today["verdict"] == "inconclusive"
    [burst] = today["bursts"]
    assert burst["fleet_received_bits_per_second"] == pytest.approx(7e6, rel=1e-6)
    assert burst["fleet_sent_bits_per_second"] == pytest.approx(7e6, rel=1e-6)
    [gap] = [result for result in today["findings"] if result["id"] == "clocks-apart"]
    assert f"{abs(off_s):.1f} s {'behind' if off_s < 0 else 'ahead'}" in gap["sentence"]


def with_metric(versions: Versions, bursts: list[Floats], folder: Path, factor: float) -> Answers:
    """Import a table of means with a device metric in bins of a minute, 75 s behind."""
    return imported(
        versions,
        "original",
        table_of_means(folder / "stats.csv", bursts, PERIOD_S),
        "--timezone",
        "UTC",
        "--firewall-metric",
        metric(folder / "metric.csv", bursts, PERIOD_S, factor=factor, lag_s=75.0),
        "--set",
        "objective.target_bits_per_second=7.5e9",
    )


def test_m11_accurate_data_passes(versions: Versions, tmp_path: Path) -> None:
    """Import a fleet 38 % above the target with a complete metric.

    At 6cca7b45: inconclusive. The residual was 0.00 % (-11.18 % to +7.20 %) and the limit 5 %.
    """
    bursts = [steady(10, 280, 1e9, noise=0.02, seed=seed) for seed in range(6)]
    reviewed, today = with_metric(versions, bursts, tmp_path, IP_RATIO)
    assert reviewed["verdict"] == "inconclusive"
    compared = reviewed["bursts"][0]["reconciliation"]
    assert compared["residual_ratio"] == pytest.approx(0.0, abs=1e-4)
    assert compared["residual_low_ratio"] == pytest.approx(-0.112, abs=0.002)
    assert today["verdict"] == "pass"
    assert today["bursts"][0]["reconciliation"]["residual_low_ratio"] > -0.05


def test_m11_bytes_imported_as_bits_are_not_bypass(versions: Versions, tmp_path: Path) -> None:
    """Import the same metric in byte/s as bit/s.

    At 6cca7b45: "87.34 % may be bypass: [...] some traffic did not cross it".
    """
    bursts = [steady(10, 280, 1e9, noise=0.02, seed=seed) for seed in range(6)]
    reviewed, today = with_metric(versions, bursts, tmp_path, IP_RATIO / 8)
    assert "bypass" in ids(reviewed)
    assert today["verdict"] == "inconclusive"
    assert "bypass" not in ids(today)
    [declared] = [result for result in today["findings"] if result["id"] == "metric-declaration"]
    assert "A factor of 1/8 of the true bytes" in declared["sentence"]
