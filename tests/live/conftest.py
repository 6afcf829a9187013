"""Beds that the live tests share, and what they need."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab.loopback import steady_clock
from tests.live.live_site import Site


@pytest.hookimpl(tryfirst=True)  # before a module's bed
def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0 and item.get_closest_marker("needs_root"):
        pytest.skip("needs root")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Nothing runs on it yet."""
    with Site(tmp_path) as standing:
        yield standing


@pytest.fixture(scope="module")
def clock() -> Iterator[str]:
    """The socket of a chronyd that passes the agents' gate."""
    with steady_clock() as socket_path:
        yield socket_path


@pytest.fixture
def both_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One at a time of the tests that need them, whichever of pytest's processes runs it."""
    with (tmp_path_factory.getbasetemp().parent / "both-cores.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
