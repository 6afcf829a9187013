"""Fixtures that run every case on every adapter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from exchange.ports import JobQueue, Table
from tests.contract.adapters import ADAPTERS, Place


@pytest.fixture(params=sorted(ADAPTERS))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return ADAPTERS[request.param].make(tmp_path)


@pytest.fixture
async def queue(place: Place) -> AsyncIterator[JobQueue]:
    queue = place.open_queue()
    yield queue
    await queue.close()


@pytest.fixture
async def table(place: Place) -> AsyncIterator[Table]:
    table = place.open_table()
    yield table
    await table.close()
