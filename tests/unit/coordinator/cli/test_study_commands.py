"""Tests for the study tables printed by the command line."""

import pytest

from broadside.coordinator.cli.study_commands import print_study
from tests.unit.coordinator.studies.samples import SWEEP, drilled, grown, results, study


def test_trial_table_has_cpu_cost_of_both_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials = results(1e9, 2e9, client_cpu_s_per_gigabyte=1.254)
    trials[1] = trials[1].model_copy(update={"server_cpu_s_per_gigabyte": 0.5})
    print_study(study(SWEEP, trials))
    printed = capsys.readouterr().out
    assert "CPU-s/GB, client / server" in printed
    assert "1.254 / unknown" in printed
    assert "1.254 / 0.5" in printed


def test_prints_tables_of_steps_and_outages(capsys: pytest.CaptureFixture[str]) -> None:
    print_study(grown())
    printed = capsys.readouterr().out
    assert "20.0 s" in printed
    assert "31.4 Gbit/s" in printed
    print_study(drilled())
    printed = capsys.readouterr().out
    assert "1500 ms +- 20" in printed
    assert "12:01:00.000" in printed
