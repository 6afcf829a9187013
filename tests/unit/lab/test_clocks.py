"""What each chronyd is told."""

from pathlib import Path
from typing import Any

import pytest

from broadside.lab import clocks, namespaces
from broadside.lab.clocks import client_directives, server_directives
from broadside.lab.topology import LabSpec

SPEC = LabSpec(pairs_count=1, prefix="bs")


def test_hosts_follow_the_firewall_over_the_management_network() -> None:
    (source, *_) = client_directives(SPEC, "c001")
    address = source.split()[1]
    (allowed,) = [line for line in server_directives(SPEC) if line.startswith("allow")]
    network = allowed.split()[1].removesuffix("/22")
    assert address.rsplit(".", 2)[0] == network.rsplit(".", 2)[0]


@pytest.mark.parametrize("directives", [server_directives(SPEC), client_directives(SPEC, "c001")])
def test_each_has_a_pid_file_of_its_own_and_no_socket(directives: tuple[str, ...]) -> None:
    assert "bindcmdaddress /" in directives
    (pid_file,) = [line for line in directives if line.startswith("pidfile ")]
    # chronyd replaces and later removes this file: it must never be one of the system's.
    assert pid_file.startswith("pidfile /run/chrony/broadside-bs-")


def test_only_a_planted_clock_is_off() -> None:
    assert "offset" not in client_directives(SPEC, "c001")[0]
    assert client_directives(SPEC, "c001", 0.08)[0].endswith(" offset 0.080000000")


def test_a_lab_that_ends_leaves_the_folder_to_one_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the folder and its first pid file another lab may remove what it finds empty."""
    folder = tmp_path / "chrony"
    for module in (clocks, namespaces):
        monkeypatch.setattr(module, "CHRONY_PATH", folder)
    made = Path.mkdir
    others = iter([True, True, False])

    def mkdir_and_lose(path: Path, *given: Any, **named: Any) -> None:
        made(path, *given, **named)
        if next(others):  # ends this very moment
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    clocks._keep_folder("bs7")
    with pytest.raises(OSError, match="not empty"):
        folder.rmdir()
