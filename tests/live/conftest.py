"""Beds that the live tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Nothing runs on it yet."""
    with Site(tmp_path) as standing:
        yield standing
