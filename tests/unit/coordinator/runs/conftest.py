"""Fixtures for run tests."""

import pytest

from tests.unit.coordinator.presences import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
