"""A study as the command line prints it."""

import pytest
import typer

from broadside.coordinator.cli import capacity_commands
from broadside.coordinator.cli.study_commands import print_study
from tests.unit.coordinator.studies.samples import SWEEP, drilled, grown, results, study


def test_the_table_has_each_trials_cost_at_both_ends_and_says_what_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = results(1e9, 2e9, client_cpu_s_per_gigabyte=1.254)
    told[1] = told[1].model_copy(update={"server_cpu_s_per_gigabyte": 0.5})
    print_study(study(SWEEP, told), as_json=False)
    printed = capsys.readouterr().out
    assert "CPU-s/GB, client / server" in printed
    assert "1.254 / unknown" in printed
    assert "1.254 / 0.5" in printed


def test_steps_and_outages_have_their_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_study(grown(), as_json=False)
    printed = capsys.readouterr().out
    assert "20.0 s" in printed
    assert "31.4 Gbit/s" in printed
    print_study(drilled(), as_json=False)
    printed = capsys.readouterr().out
    assert "1500 ms +- 20" in printed
    assert "12:01:00.000" in printed


def test_units_for_a_rate_are_those_of_the_newest_scale_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [study(SWEEP, results(1e9)), grown()]
    monkeypatch.setattr(capacity_commands, "run", lambda api, work: there)
    capacity_commands.units("150G")
    printed = capsys.readouterr().out
    assert printed.startswith("14 units for 150 Gbit/s")  # 2, and 130 of 11.4 Gbit/s
    assert "capacity set --min 14 --max 14" in printed
    del there[1]
    with pytest.raises(typer.Exit):
        capacity_commands.units("150G")
