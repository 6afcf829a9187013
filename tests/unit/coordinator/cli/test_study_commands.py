"""A study as the command line prints it."""

import pytest

from coordinator.cli.study_tables import print_study
from tests.unit.coordinator.studies.samples import SWEEP, results, study


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
