"""Configuration of all tests."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from broadside.coordinator.process_memory import collect_rarely

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# A test must not assert an absolute time. If an example is slow on shared cores, this does not mean
# that the code is slow.
settings.register_profile(
    "shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-cores")

# Files with at least 15 seconds, from the longest to the shortest, so that all workers end at about
# the same time. `pytest --durations=0` prints the seconds of each test.
FIRST: Final = (
    *("hosts_archive", "wheel", "azure_bundle", "release", "hosts", "support_bundle"),
    *("connections_io", "servicebus_faults", "connections_run", "queue"),
    *("engine", "pipeline", "launches_at_once", "fault_core"),
    *("traffic", "agents", "deploy_boot", "page", "azure_faults", "managed_identity"),
    *("rolling_upgrade", "services_on_loopback", "revocation", "demo", "hosts_ways"),
    *("page_views", "soak", "live_values", "api_live", "foreign_rows", "attack_io", "identities"),
    *("recipes", "no_secrets", "passports", "reviewed_engine", "studies", "telemetry_over_snmp"),
    *("azure_requests", "slow_places_io", "silent_streams_in_lab", "lab_network"),
    *("poisoned_queue", "azure_answers", "competition", "secrets_of_a_run"),
    *("canaries_on_sockets", "stopped", "telemetry_in_a_run", "lab_profiles", "imports"),
    *("connections_in_lab", "connection_limits_io", "coordinators_die", "hard_stop", "api_reads"),
    *("engine_silence", "cli", "records", "fuzz", "azure_table", "schedules_live", "assistant"),
    *("schedules", "connection_limits_run", "servicebus_tls", "given_up", "lab_fleet"),
    *("storage_gone", "lab_rights", "docker"),
)
# The tests that run alone and need both cores. They run one after the other in one process, because
# a second process would only wait.
BOTH_CORES: Final = (
    *("snmp_counter", "sequential_studies", "readme", "demo_azure", "connections_in_lab"),
    *("search_in_lab", "seconds_on_the_wire", "mixed_in_lab"),
)
# The order of the tests that run after the others (markers `alone` and `quiet`).
ALONE: Final = (
    *BOTH_CORES,
    *("canaries_in_lab", "translated_in_lab", "tunnels_in_lab", "planted_causes", "drill_in_lab"),
    *("canaries_over_transports", "udp_loss", "first_run", "guarded_runs", "units_in_lab"),
    *("devices_in_modes", "translation_study", "soak", "scale_in_lab", "demo"),
    "canaries_with_units",
)
# The tests of a file in which each release of Debian has hosts of its own, and those of an upgrade.
OWN_HOSTS: Final = re.compile(r"/test_hosts_archive\.py::(test_upgrades)?.*\[(\w+)\]$")


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Sends a file to a worker that has one test left, because a worker runs a test when it knows
    the next one. Files with few tests would otherwise wait for a worker with a long test.
    """

    def _split_scope(self, nodeid: str) -> str:
        if _name(Path(nodeid.partition("::")[0])) in BOTH_CORES:
            return "both cores"
        own = OWN_HOSTS.search(nodeid)
        return f"{super()._split_scope(nodeid)}{own.groups() if own else ''}"

    def _reschedule(self, node: "WorkerController") -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    # Garbage collection would take a twentieth of the tests' CPU time.
    collect_rarely()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    parts: Sequence[str] = item.path.parts
    name = _name(item.path)
    is_late = item.get_closest_marker("alone") or item.get_closest_marker("quiet")
    order = ALONE if is_late else FIRST
    if name in order:
        return order.index(name)
    if "live" in parts or "shipped" in parts:
        return len(order)
    return len(order) + (1 if "contract" in parts else 2)


def _name(path: Path) -> str:
    return path.stem.removeprefix("test_")
