"""Fixtures for tests of shipped artefacts, and the table that ``make shipped`` prints."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from deploy.hosts.archive import build as build_archive
from tests.shipped.served_operations import served

__all__ = ["served"]

HOST_PYTHONS: Final = ("3.11", "3.13")
# The property name that passes rows to the main process of pytest.
ROW: Final = "shipped-row"
HEADINGS: Final = ("artefact", "system", "what ran", "seconds")


class AddRow(Protocol):
    """Function type that adds a row to the table of ``make shipped``."""

    def __call__(self, artefact: str, system: str, what: str) -> None:
        """Add a row with the time in seconds since the previous row or the begin of the test.

        Args:
            artefact: Tested artefact, for example ``hosts archive``.
            system: System, for example ``Debian 12, Python 3.11.2``.
            what: Executed steps in a few words.
        """


@pytest.fixture
def shipped_row(record_property: Callable[[str, object], None]) -> Iterator[AddRow]:
    """Yield a function that adds a row for a successfully executed step of a test."""
    began_s = time.monotonic()

    def add(artefact: str, system: str, what: str) -> None:
        nonlocal began_s
        now_s = time.monotonic()
        record_property(ROW, [artefact, system, what, f"{now_s - began_s:.0f}"])
        began_s = now_s

    yield add


@pytest.fixture(scope="session")
def build_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that builds a file once for all pytest processes, and returns its path.

    ``build_once("hosts.tar.gz", build)`` will call ``build(path)`` in the first process. The other
    processes have to wait. The file must not be changed.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def build(name: str, make: Callable[[Path], object]) -> Path:
        path = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                partial = path.with_name(f"partial-{name}")
                make(partial)
                partial.rename(path)
        return path

    return build


@pytest.fixture(scope="session")
def hosts_archive(build_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return the archive of this checkout for the Python versions of Debian 12 and 13.

    To use another archive, set the environment variable ``SHIPPED_HOSTS_ARCHIVE``.
    """
    given = os.environ.get("SHIPPED_HOSTS_ARCHIVE")
    if given:
        return Path(given)
    return build_once("broadside-hosts.tar.gz", lambda path: build_archive(path, HOST_PYTHONS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the executed steps."""
    rows = [
        [str(cell) for cell in value]
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == ROW and isinstance(value, list | tuple)
    ]
    if not rows:
        return
    table = [list(HEADINGS), *sorted(rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    terminalreporter.section("shipped")
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        terminalreporter.write_line("  ".join([*cells, row[-1].rjust(widths[-1])]))
