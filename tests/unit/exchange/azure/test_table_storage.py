"""Tests for the settings of the Azure table and raw store."""

from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.azure.blob_storage import BlobRaw, open_raw
from broadside.exchange.azure.service_bus import ServiceBusQueue
from broadside.exchange.azure.table_storage import AzureTable, open_table
from broadside.exchange.documents import TableRaw
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.ports import ExchangeMisconfigured

KEYED = "AccountName=lab;AccountKey=bGFi;TableEndpoint=http://127.0.0.1:1/lab;"
ENDPOINT = "https://lab.table.core.windows.net"
BLOBS = "https://lab.blob.core.windows.net"


def settings(**values: Any) -> FabricSettings:
    return FabricSettings(fabric="azure", **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "BROADSIDE_TABLES_CONNECTION_STRING: both missing; set one"),
        (
            {"tables_endpoint": ENDPOINT, "tables_connection_string": KEYED},
            "BROADSIDE_TABLES_CONNECTION_STRING: both set; drop one",
        ),
        ({"tables_endpoint": "http://lab"}, "BROADSIDE_TABLES_ENDPOINT=http://lab: .*https only"),
        ({"tables_endpoint": "lab"}, "BROADSIDE_TABLES_ENDPOINT=lab: .*https only"),
        ({"tables_endpoint": "https://"}, "BROADSIDE_TABLES_ENDPOINT=https://: .*https only"),
        ({"tables_connection_string": "lab"}, "BROADSIDE_TABLES_CONNECTION_STRING is not one"),
        (
            {"tables_connection_string": "AccountName=lab;TableEndpoint=http://127.0.0.1"},
            "BROADSIDE_TABLES_CONNECTION_STRING is not one",
        ),
        (
            {"tables_endpoint": ENDPOINT, "tables_results": "my-table"},
            "BROADSIDE_TABLES_RESULTS=my-table: .*3 to 63 letters and digits",
        ),
    ],
)
def test_wrong_or_incomplete_settings_raise_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ExchangeMisconfigured, match=message) as caught:
        open_table(settings(**values), "results")
    assert "\n" not in str(caught.value)
    assert "bGFi" not in str(caught.value)


async def test_one_credential_is_enough_to_open_without_a_connection() -> None:
    for values in (
        {"tables_connection_string": KEYED},
        {"tables_endpoint": ENDPOINT, "tables_ca_file": Path("/nowhere.pem")},
    ):
        table = open_table(settings(**values), "results")
        assert isinstance(table, AzureTable)
        await table.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"blobs_endpoint": BLOBS, "blobs_connection_string": KEYED},
            "BROADSIDE_BLOBS_CONNECTION_STRING: both set; drop one",
        ),
        ({"blobs_endpoint": "http://lab"}, "BROADSIDE_BLOBS_ENDPOINT=http://lab: .*https only"),
        ({"blobs_connection_string": "lab"}, "BROADSIDE_BLOBS_CONNECTION_STRING is not one"),
        *(
            (
                {"blobs_endpoint": BLOBS, "blobs_container": name},
                f"BROADSIDE_BLOBS_CONTAINER={name}: .*3 to 63 small letters",
            )
            for name in ("Raw", "ra", "raw--output", "-raw", "raw_output")
        ),
    ],
)
def test_blob_settings_are_validated(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ExchangeMisconfigured, match=message) as caught:
        open_raw(settings(**values))
    assert "\n" not in str(caught.value)
    assert "bGFi" not in str(caught.value)


async def test_fabric_has_queue_tables_and_raw_store() -> None:
    complete = {
        "servicebus_namespace": "lab.servicebus.windows.net",
        "tables_endpoint": ENDPOINT,
    }
    fabric = open_fabric(settings(**complete))
    assert isinstance(fabric.queue, ServiceBusQueue)
    tables = (fabric.control, fabric.results, fabric.private)
    assert [str(table) for table in tables] == [
        f"table {name!r} at {ENDPOINT}" for name in ("control", "results", "private")
    ]
    assert isinstance(fabric.raw_store, TableRaw)
    await fabric.close()
    fabric = open_fabric(settings(**complete, blobs_endpoint=BLOBS))
    assert isinstance(fabric.raw_store, BlobRaw)
    await fabric.close()


async def test_embedded_fabric_can_use_a_blob_account(tmp_path: Path) -> None:
    blobs = KEYED.replace("Table", "Blob")
    fabric = open_fabric(
        FabricSettings(fabric="embedded", data_dir=tmp_path, blobs_connection_string=blobs)
    )
    assert isinstance(fabric.raw_store, BlobRaw)
    await fabric.close()
