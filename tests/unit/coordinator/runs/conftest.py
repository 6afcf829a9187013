"""What tests of runs share."""

import pytest

from tests.unit.coordinator.presences import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
