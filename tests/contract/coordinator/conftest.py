"""Fixtures that these tests share with the unit tests."""

from tests.unit.coordinator import conftest

fabric = conftest.fabric
