"""What holds for every test."""

from collections.abc import Sequence
from typing import Final

import MLRsearch  # noqa: F401 - its classes walk the stack as they are made: early, while it is cheap
import pytest
from hypothesis import HealthCheck, settings

from coordinator.process_memory import collect_rarely

# A test never asserts an absolute time: on shared cores a slow example says nothing of the code.
settings.register_profile(
    "shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-cores")

# Live tests wait, unit tests compute: the long ones first, so that workers end at one time.
FIRST: Final = (
    *("hunted", "soak", "studies", "coordinators_die", "azure_faults", "page", "tunnels_in_lab"),
    *("newcomer", "first_run", "fault_core", "hosts", "deploy_boot", "managed_identity"),
    *("pipeline", "launches_at_once", "servicebus_faults", "devices_in_modes", "poisoned_queue"),
    *("agents", "queue", "no_secrets", "identities", "competition", "schedules", "demo"),
    *("readme", "drill_in_lab", "snmp_ledger"),
)


def pytest_collection_finish() -> None:
    collect_rarely()  # a twentieth of the tests' CPU


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    parts: Sequence[str] = item.path.parts
    name = item.path.stem.removeprefix("test_")
    if name in FIRST:
        return FIRST.index(name)
    if "live" in parts:
        return len(FIRST)
    return len(FIRST) + (1 if "contract" in parts else 2)
