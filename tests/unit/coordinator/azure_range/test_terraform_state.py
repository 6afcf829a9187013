"""Tests for reading a range from its Terraform state."""

import pytest

from broadside.coordinator.azure_range.resources import Resources
from broadside.coordinator.azure_range.terraform_state import read_state
from broadside.coordinator.azure_range.trace import TraceRow
from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator.applied import resources_of
from tests.unit.coordinator.azure_range.stored import document


def hops(resources: Resources) -> dict[tuple[str, str], list[str]]:
    def words(row: TraceRow) -> list[str]:
        # The order of the VMs in a list is not a result.
        return sorted(part for hop in row.hops for part in f"{hop}".split(", "))

    return {(row.role, row.need): words(row) for row in walk(resources)}


@pytest.mark.parametrize("state", ["notebook", "private", "other-appliance"])
def test_terraform_and_azure_have_the_same_walk(state: str) -> None:
    stored = document(state)
    differs = {
        need: (there, hops(resources_of(stored))[need])
        for need, there in hops(read_state(stored["state"])).items()
        if there != hops(resources_of(stored))[need]
    }
    differs.pop(("range", "one of each VM"), None)
    assert differs == {}


def test_an_empty_state_has_no_machines() -> None:
    rows = {(row.role, row.need): str(row) for row in walk(read_state({}))}
    assert "roles of the VMs" in rows["range", "one of each VM"]
