"""Tests for the settings used to select the fabric."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.ports import Entity, ExchangeMisconfigured


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FabricSettings.model_fields:
        monkeypatch.delenv(f"BROADSIDE_{name.upper()}", raising=False)


def test_default_is_embedded_in_the_current_directory() -> None:
    settings = FabricSettings()
    assert (settings.fabric, settings.data_dir) == ("embedded", Path(".broadside"))


async def test_files_are_created_by_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    fabric = open_fabric()
    assert isinstance(fabric.queue, EmbeddedQueue)
    for table in (fabric.control, fabric.results, fabric.private):
        assert isinstance(table, EmbeddedTable)
    assert not (tmp_path / "data").exists()
    await fabric.control.insert(Entity(partition_key="p", row_key="r", properties={}))
    assert await fabric.queue.receive(0) is None
    assert await fabric.records.fleet.read_presences() == []
    await fabric.close()
    names = {path.name for path in (tmp_path / "data").iterdir()}
    assert names == {"queue.sqlite3", "control.sqlite3", "results.sqlite3"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("FABRIC", "carrier-pigeon"), ("QUEUE_LOCK_S", "301"), ("QUEUE_DELIVERIES_MAX_COUNT", "few")],
)
def test_wrong_setting_raises_one_line_with_variable_and_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"BROADSIDE_{name}", value)
    with pytest.raises(ExchangeMisconfigured, match=f"BROADSIDE_{name}={value}: ") as caught:
        open_fabric()
    assert "\n" not in str(caught.value)


def test_explicit_settings_are_validated() -> None:
    with pytest.raises(ValidationError):
        FabricSettings(queue_lock_s=0)


def test_missing_azure_adapter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules,
        "broadside.exchange.azure.azure_fabric",
        None,
        # Simulate a missing adapter.
    )
    with pytest.raises(ExchangeMisconfigured, match=r"BROADSIDE_FABRIC=azure: \S+ is missing"):
        open_fabric(FabricSettings(fabric="azure"))


def test_missing_blob_adapter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.storage.blob", None)
    for name in ("azure_fabric", "blob_storage"):
        monkeypatch.delitem(sys.modules, f"broadside.exchange.azure.{name}", raising=False)
    with pytest.raises(ExchangeMisconfigured, match=r"azure.storage.blob is missing"):
        open_fabric(FabricSettings(blobs_endpoint="https://site.blob.core.windows.net"))
