"""Tests for range files that need processes, sockets or real time."""

from pathlib import Path

import pytest

from broadside.coordinator.cli import range_files
from tests.unit.coordinator.cli import test_range_files
from tests.unit.coordinator.cli.test_range_files import up

# Fixture.
installed = test_range_files.installed


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("source", ["option", "set", "vars", "file"])
def test_up_accepts_all_forms_of_bundle_setting(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "a ${bundle}.tar.gz"
    bundle.write_bytes(b"x")
    (tmp_path / "mine.tfvars").write_text(f'bundle_path = "{bundle}"\n')
    parts = {
        "option": ["--bundle", str(bundle)],
        "set": ["--set", f"bundle_path={bundle}"],
        "vars": ["--vars", str(tmp_path / "mine.tfvars")],
        "file": [],
    }[source]
    if source == "file":
        directory = range_files.default_directory()
        range_files.copy_files(directory)
        (tmp_path / "mine.tfvars").rename(directory / "terraform.tfvars")
    code, text = up(*parts, monkeypatch=monkeypatch, capfd=capfd)
    assert (code, "terraform is not installed" in text) == (4, True)
    bundle_setting = range_files.default_directory() / range_files.BUNDLE
    assert bundle_setting.is_file() == (source == "option")
    if source == "option":
        assert bundle_setting.read_text() == f'bundle_path = "{tmp_path}/a $${{bundle}}.tar.gz"\n'
        # The next command will use the stored bundle path.
        assert up(monkeypatch=monkeypatch, capfd=capfd)[0] == 4
