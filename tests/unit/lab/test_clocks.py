"""Tests for the chronyd directives in the lab."""

from pathlib import Path
from typing import Any

import pytest

from broadside.lab import clocks, namespaces
from broadside.lab.clocks import client_directives, server_directives
from broadside.lab.topology import LabSpec

SPEC = LabSpec(pairs_count=1, prefix="bs")


def test_hosts_synchronise_over_the_management_network() -> None:
    (source, *_) = client_directives(SPEC, "c001")
    address = source.split()[1]
    (allowed,) = [line for line in server_directives(SPEC) if line.startswith("allow")]
    network = allowed.split()[1].removesuffix("/22")
    assert address.rsplit(".", 2)[0] == network.rsplit(".", 2)[0]


@pytest.mark.parametrize("directives", [server_directives(SPEC), client_directives(SPEC, "c001")])
def test_directives_have_private_pid_file_and_no_socket(directives: tuple[str, ...]) -> None:
    assert "bindcmdaddress /" in directives
    (pid_file,) = [line for line in directives if line.startswith("pidfile ")]
    # chronyd will remove this file, so it must not be used by the system.
    assert pid_file.startswith("pidfile /run/chrony/broadside-bs-")


def test_only_a_faulty_clock_has_an_offset() -> None:
    assert "offset" not in client_directives(SPEC, "c001")[0]
    assert client_directives(SPEC, "c001", 0.08)[0].endswith(" offset 0.080000000")


def test_folder_survives_removal_by_an_ending_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the folder is empty, it can be removed by another lab."""
    folder = tmp_path / "chrony"
    for module in (clocks, namespaces):
        monkeypatch.setattr(module, "CHRONY_PATH", folder)
    mkdir = Path.mkdir
    removals = iter([True, True, False])

    def mkdir_and_remove(path: Path, *given: Any, **named: Any) -> None:
        mkdir(path, *given, **named)
        # This is when another lab ends.
        if next(removals):
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_and_remove)
    clocks._create_folder("bs7")
    with pytest.raises(OSError, match="not empty"):
        folder.rmdir()
