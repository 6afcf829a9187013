"""Beds that the live tests share."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.live_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Nothing runs on it yet."""
    with Site(tmp_path) as standing:
        yield standing


@pytest.fixture
def both_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One at a time of the tests that need them, whichever of pytest's processes runs it."""
    with (tmp_path_factory.getbasetemp().parent / "both-cores.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
