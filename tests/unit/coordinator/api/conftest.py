"""The application over an embedded fabric, asked without a network."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from coordinator.api.app import create_app
from coordinator.runs.coordinator import Coordinator
from exchange.fabric import Fabric, FabricSettings, open_fabric
from tests.unit.coordinator.presences import NOW


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    yield fabric
    await fabric.close()


@pytest.fixture
def app(fabric: Fabric) -> FastAPI:
    return create_app(Coordinator(fabric, now=lambda: NOW), tick_s=None)


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http
