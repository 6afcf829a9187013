"""A store for the runs that are looked at, and the API over it."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from coordinator.api.app import create_app
from coordinator.runs.coordinator import Coordinator
from exchange.fabric import Fabric, FabricSettings, open_fabric


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    yield fabric
    await fabric.close()


@pytest.fixture
async def api(fabric: Fabric) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client
