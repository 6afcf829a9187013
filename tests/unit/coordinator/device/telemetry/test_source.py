"""Tests for secrets, for the settings of a byte counter and for Azure Monitor."""

from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.device.telemetry.azure_monitor import parse_grain
from broadside.coordinator.device.telemetry.config import open_entry, open_telemetry, read_entries
from broadside.coordinator.device.telemetry.device_counter import open_counter
from broadside.coordinator.device.telemetry.source import Secret, TelemetryError

FIREWALL = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"


def test_reads_a_secret_from_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("BROADSIDE_TEST_TOKEN", "s3cret")
    assert Secret(file=tmp_path / "token").read("fw") == "s3cret"
    assert Secret(env="BROADSIDE_TEST_TOKEN").read("fw") == "s3cret"


@pytest.mark.parametrize("fields", [{}, {"env": "A", "file": "b"}, {"env": "PATH"}, "s3cret"])
def test_rejects_secrets_without_exactly_one_valid_source(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"write \{ env|BROADSIDE_"):
        Secret.model_validate(fields)


def test_error_contains_the_unset_variable() -> None:
    with pytest.raises(TelemetryError, match="fw: secret BROADSIDE_NOWHERE: empty"):
        Secret(env="BROADSIDE_NOWHERE").read("fw")


@pytest.mark.parametrize("name", ["BROADSIDE_LEDGER", "BROADSIDE_WITNESSES_FILE"])
def test_rejects_old_settings_with_the_new_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "csv")
    with pytest.raises(TelemetryError, match=rf"{name}: replaced by .*\[\[source\]\] table"):
        open_telemetry(None)


def test_rejects_an_old_file_with_the_new_form(tmp_path: Path) -> None:
    path = tmp_path / "witnesses.toml"
    path.write_text('[[witness]]\ndevice = "fw"\nsource = "ping"\n')
    with pytest.raises(TelemetryError, match=r"witness: not valid; write a \[\[source\]\] table"):
        open_telemetry(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.toml"
    path.write_text(
        '[[source]]\nprofiles_file = "p.toml"\nfile = "/x"\ncommunity = { file = "secret" }\n'
    )
    [entry] = read_entries(path)
    assert entry["profiles_file"] == str(tmp_path / "p.toml")
    assert entry["community"]["file"] == str(tmp_path / "secret")
    assert entry["file"] == "/x"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"resource_id": "fw"}, "resource_id 'fw': not a resource id"),
        ({"endpoint": "http://x.azure.com"}, "endpoint .*https only"),
        ({"grain": "1m"}, "grain '1m': not a duration"),
        ({"grain": "PT0S"}, "grain 'PT0S': not a duration"),
        ({"grain": "P2D"}, "grain 'P2D': not a duration"),
        ({"grain": "PT99999S"}, "grain 'PT99999S': not a duration"),
        ({"grain": f"P{'9' * 400}D"}, "grain 'P9{39}': not a dur"),
        ({"grain": f"P{'9' * 5000}D"}, "grain 'P9{39}': not a dur"),
    ],
)
def test_invalid_azure_monitor_setting_is_a_one_line_error(
    values: dict[str, Any], expected: str
) -> None:
    entry = {"type": "azure-monitor", "device": "fw", "resource_id": FIREWALL, **values}
    with pytest.raises(TelemetryError, match=expected):
        open_entry(entry)


@pytest.mark.parametrize(
    ("text", "seconds"), [("PT1M", 60), ("PT5S", 5), ("PT1H", 3600), ("P1D", 86_400)]
)
def test_grains_are_durations(text: str, seconds: float) -> None:
    assert parse_grain(text) == seconds


REST: dict[str, Any] = {"type": "rest", "device": "fw", "url": "https://x", "byte_counter": {}}


def test_rest_counts_bytes_with_a_counter_of_bits() -> None:
    read = {"quantity": "in_bits_per_second", "path": "bytes", "counter": 64, "scale": 8}
    counter = open_counter([open_entry({**REST, "read": [read]})])
    assert counter is not None
    assert counter.is_polled
    del read["counter"]
    with pytest.raises(TelemetryError, match="read in_bits_per_second with counter = 64"):
        open_entry({**REST, "read": [read]})


def test_only_polled_counters_are_added(tmp_path: Path) -> None:
    entry = {"type": "csv", "device": "fw", "file": tmp_path / "x", "byte_counter": {}}
    with pytest.raises(TelemetryError, match="added for polled sources only"):
        open_counter([open_entry(entry), open_entry({**entry, "device": "b"})])
