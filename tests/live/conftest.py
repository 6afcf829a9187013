"""Shared fixtures and requirements of the live tests."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab.loopback import steady_clock
from tests.live.live_site import Site


# This hook needs to run before the fixtures of a module.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0 and item.get_closest_marker("needs_root"):
        pytest.skip("needs root")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a site without running processes."""
    with Site(tmp_path) as standing:
        yield standing


@pytest.fixture(scope="module")
def clock() -> Iterator[str]:
    """Yield the socket of a chronyd that passes the agents' clock gate."""
    with steady_clock() as socket_path:
        yield socket_path


@pytest.fixture
def both_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serialize the tests that need both cores, for all pytest processes."""
    with _both_cores(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def both_cores_for_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serialize a module with tests that need both cores."""
    with _both_cores(tmp_path_factory):
        yield


@contextlib.contextmanager
def _both_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with (tmp_path_factory.getbasetemp().parent / "both-cores.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
