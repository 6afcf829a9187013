"""Settings choose the source; wrong or half-filled ones are one line that names the field."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.device.ledgers import source_names
from broadside.coordinator.device.ledgers.azure_monitor_source import (
    AzureMonitorLedger,
    parse_grain,
)
from broadside.coordinator.device.ledgers.csv_source import CsvLedger
from broadside.coordinator.device.ledgers.kept import dump_ledger, load_ledger
from broadside.coordinator.device.ledgers.lab_source import LabLedger
from broadside.coordinator.device.ledgers.prometheus_source import PrometheusLedger
from broadside.coordinator.device.ledgers.snmp_source import SnmpLedger
from broadside.coordinator.device.ledgers.source import LedgerError, LiveSource, open_ledger
from broadside.exchange.messages import Direction, Flow
from tests.unit.coordinator.device.ledgers.test_settle import NAN, ledger

FIREWALL = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"
WITNESSES = Path(__file__).with_name("witnesses.toml")
CHOICES: dict[str, tuple[type, dict[str, Any]]] = {
    "lab": (LabLedger, {"ledger_path": Path("x")}),
    "csv": (CsvLedger, {"ledger_path": Path("x")}),
    "prometheus": (PrometheusLedger, {"prometheus_url": "http://p", "prometheus_query": "up"}),
    "snmp": (SnmpLedger, {"witnesses_file": WITNESSES}),
    "azure-monitor": (AzureMonitorLedger, {"azure_monitor_resource_id": FIREWALL}),
}


def settings(**values: Any) -> CoordinatorSettings:
    return CoordinatorSettings(**values)


def test_none_is_no_source_and_what_is_none_is_refused_with_those_there_are() -> None:
    assert open_ledger(settings(ledger="none")) is None
    with pytest.raises(ValueError, match="set none, azure-monitor, csv"):
        settings(ledger="csvv")


def test_every_source_has_its_case_here() -> None:
    assert sorted(CHOICES) == source_names()


@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_opens_its_source_and_needs_all_it_needs(choice: str) -> None:
    kind, needed = CHOICES[choice]
    assert isinstance(open_ledger(settings(ledger=choice, **needed)), kind)
    for name in needed:
        rest = {other: value for other, value in needed.items() if other != name}
        words = f"{name}: not set, but ledger is '{choice}'; set BROADSIDE_{name.upper()}"
        with pytest.raises(LedgerError, match=words):
            open_ledger(settings(ledger=choice, **rest))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"azure_monitor_resource_id": "fw"}, "azure_monitor_resource_id 'fw': not a resource id"),
        ({"azure_monitor_endpoint": "http://x.azure.com"}, "azure_monitor_endpoint .*https only"),
        ({"azure_monitor_grain": "1m"}, "azure_monitor_grain '1m': not a duration"),
        ({"azure_monitor_grain": "PT0S"}, "azure_monitor_grain 'PT0S': not a duration"),
        ({"azure_monitor_grain": "P2D"}, "azure_monitor_grain 'P2D': not a duration"),
        ({"azure_monitor_grain": "PT99999S"}, "azure_monitor_grain 'PT99999S': not a duration"),
        ({"azure_monitor_grain": f"P{'9' * 400}D"}, "azure_monitor_grain 'P9{39}': not a dur"),
        ({"azure_monitor_grain": f"P{'9' * 5000}D"}, "azure_monitor_grain 'P9{39}': not a dur"),
    ],
)
def test_a_wrong_setting_of_azure_monitor_is_one_line(values: dict[str, Any], words: str) -> None:
    chosen = {"ledger": "azure-monitor", "azure_monitor_resource_id": FIREWALL} | values
    with pytest.raises(LedgerError, match=words):
        open_ledger(settings(**chosen))


@pytest.mark.parametrize(
    ("text", "seconds"), [("PT1M", 60), ("PT5S", 5), ("PT1H", 3600), ("P1D", 86_400)]
)
def test_grains_are_durations(text: str, seconds: float) -> None:
    assert parse_grain(text) == seconds


def test_what_is_kept_comes_back_unknown_bins_and_notes_too() -> None:
    kept: FirewallLedger = ledger(1, NAN, 3)
    back = load_ledger(dump_ledger(kept))
    np.testing.assert_array_equal(back.bytes, kept.bytes)
    np.testing.assert_array_equal(back.start_s, kept.start_s)
    assert (back.source, back.read_at, back.notes) == (kept.source, kept.read_at, kept.notes)
    assert back.drops_count is None


def test_drops_that_are_kept_come_back() -> None:
    kept = replace(ledger(1, 2, 3), drops_count=np.array([7, NAN, 0.0]))
    back = load_ledger(dump_ledger(kept))
    assert back.drops_count is not None
    np.testing.assert_array_equal(back.drops_count, [7, NAN, 0.0])


CSV = """time,bytes
2026-11-20T12:00:00Z,8
2026-11-20T12:01:00Z,16
"""


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, {"flows": tuple(Flow), "mss_bytes": None, "lag_hint_s": None, "extreme": None}),
        ({"ledger_direction": "in"}, {"flows": (Flow.UP,)}),
        ({"ledger_direction": "out"}, {"flows": (Flow.DOWN,)}),
        ({"ledger_mss_bytes": 1448, "ledger_layer": "payload"}, {"mss_bytes": 1448}),
        ({"ledger_lag_s": 75.0}, {"lag_hint_s": 75.0}),
        ({"ledger_counts_lost": False}, {"counts_lost": False}),
        ({"ledger_counts_lost": True}, {"counts_lost": True}),
        ({}, {"counts_lost": None}),
        ({"ledger_aggregation": "maximum"}, {"extreme": "maximum"}),
    ],
)
def test_a_ledger_carries_what_is_declared_of_its_counter(
    tmp_path: Path, declared: dict[str, Any], expected: dict[str, Any]
) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(CSV)
    source = open_ledger(settings(ledger="csv", ledger_path=path, csv_unit="bits", **declared))
    assert source is not None
    assert source.name == "csv counter.csv"
    span = (datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC))
    read = asyncio.run(source.read(*span, Direction.FORWARD))
    assert read.bytes.tolist() == [1, 2]
    assert {name: getattr(read, name) for name in expected} == expected
    kept = load_ledger(dump_ledger(read))
    for name in ("extreme", "mss_bytes", "counts_lost"):
        assert getattr(kept, name) == getattr(read, name)


def test_a_live_source_stays_one_when_its_counter_is_declared() -> None:
    opened = open_ledger(settings(ledger="snmp", witnesses_file=WITNESSES, ledger_direction="in"))
    assert isinstance(opened, LiveSource)
