"""Configuration of all tests."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from broadside.coordinator.process_memory import collect_rarely

# A test must not assert an absolute time. If an example is slow on shared cores, this does not mean
# that the code is slow.
settings.register_profile(
    "shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-cores")

# Live tests wait and unit tests compute. Long files should start first, so that all workers will
# end at about the same time. A worker takes its next file when it has two tests or fewer to run.
# The next file then has to wait for a file with one long test.
FIRST: Final = (
    *("hunted", "tunnels_in_lab", "fault_core", "hosts", "servicebus_faults", "queue"),
    *("hosts_archive", "pipeline"),
    *("launches_at_once", "page", "first_run", "azure_faults", "managed_identity", "agents"),
    *("hosts_ways", "fuzz", "soak", "traffic", "devices_in_modes", "deploy_boot", "engine"),
    *("competition", "no_secrets", "records", "recipes", "search_in_lab"),
    *("identities", "witnesses_over_snmp", "studies", "passports", "services_on_loopback"),
    *("table", "azure_requests", "api_live", "silent_streams_in_lab", "generated_client"),
    *("lab_network", "assistant", "poisoned_queue", "imports", "schedules", "coordinators_die"),
    *("witnesses_in_a_run", "lab_profiles", "stopped"),
)
# Order of the tests that run alone. The README's first run and one of the demos need both cores. If
# a worker reached one of them while the other is running, it would only wait.
ALONE: Final = (
    *("readme", "snmp_ledger", "soak", "scale_in_lab", "drill_in_lab", "demo", "planted_causes"),
)


def pytest_collection_finish() -> None:
    # Garbage collection would take a twentieth of the tests' CPU time.
    collect_rarely()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    parts: Sequence[str] = item.path.parts
    name = item.path.stem.removeprefix("test_")
    order = ALONE if item.get_closest_marker("alone") else FIRST
    if name in order:
        return order.index(name)
    if "live" in parts or "shipped" in parts:
        return len(order)
    return len(order) + (1 if "contract" in parts else 2)
