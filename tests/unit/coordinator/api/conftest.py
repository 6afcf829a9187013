"""Fixtures to call the API in the test process, at the time of the sample data."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from broadside.coordinator.api.app import create_app
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.presences import NOW


@pytest.fixture
def app(fabric: Fabric) -> FastAPI:
    return create_app(Coordinator(fabric, now=lambda: NOW), tick_s=None)


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http
