"""Fixtures to use an embedded store and an API in a test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric


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


@pytest.fixture(scope="session")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the OpenAPI document, shared by all tests because it is slow to build."""
    fabric = open_fabric(FabricSettings(data_dir=tmp_path_factory.mktemp("document")))
    openapi = create_app(Coordinator(fabric), tick_s=None).openapi()
    with asyncio.Runner() as runner:
        runner.run(fabric.close())
    return openapi
