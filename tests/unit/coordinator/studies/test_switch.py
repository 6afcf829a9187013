"""Tests for switch commands and the switch file."""

from pathlib import Path

import pytest

from broadside.coordinator.studies.switch import SwitchError, read_switches


def test_reads_switch_file(tmp_path: Path) -> None:
    path = tmp_path / "switches.toml"
    path.write_text('[idps]\nrest = "off"\n[idps.states]\noff = ["true"]\ndeny = ["true"]\n')
    assert set(read_switches(path)["idps"].states) == {"off", "deny"}
    assert read_switches(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[idps", "switches.toml"),
        (
            '[idps]\nrest = "off"\n[idps.states]\non = ["true"]\n',
            "idps: .*rest: 'off': give",
        ),
        ('[idps]\nrest = "off"\n[idps.states]\noff = []\n', r"idps\.states\.off"),
    ],
)
def test_invalid_switch_file_error_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "switches.toml"
    path.write_text(text)
    with pytest.raises(SwitchError, match=message):
        read_switches(path)
