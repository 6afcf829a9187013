"""Tests for doctor when a service is not available or returns wrong data."""

from pathlib import Path

import pytest

from broadside.coordinator.cli.doctor import fabric_checks, require_clock, try_raw
from broadside.exchange.checks import HostCheck
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.ports import ExchangeUnavailable, RawName
from broadside.exchange.rows import make_row


class LossyStore:
    """Store which does not return the saved text."""

    async def save(self, name: RawName, text: bytes) -> None: ...

    async def read(self, name: RawName) -> bytes | None:
        return None

    async def delete_folder(self, folder: str) -> int:
        return 0

    async def close(self) -> None: ...


async def test_fails_if_saved_text_cannot_be_read_back() -> None:
    with pytest.raises(ExchangeUnavailable, match="cannot be read back"):
        await try_raw(LossyStore())


async def test_raw_output_is_stored_in_table_without_blob_account() -> None:
    assert "stored in the table" in await try_raw(None)


async def test_failed_checks_of_embedded_fabric_have_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("no directory")
    monkeypatch.setenv("BROADSIDE_FABRIC", "embedded")
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(file))
    checks, servers = await fabric_checks()
    assert servers == []
    failed = {check.name: check for check in checks if not check.ok}
    assert failed.keys() == {"queue send", "queue receive", "table"}
    assert all(str(file) in check.detail and check.fix for check in failed.values()), failed


async def test_unreachable_azure_services_name_the_required_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unavailable(_: object) -> str:
        raise ExchangeUnavailable("no response")

    for name in ("try_send", "try_listen", "try_table", "try_raw"):
        monkeypatch.setattr(f"broadside.coordinator.cli.doctor.{name}", unavailable)
    monkeypatch.setenv("BROADSIDE_FABRIC", "azure")
    monkeypatch.setenv("BROADSIDE_SERVICEBUS_NAMESPACE", "lab.servicebus.windows.net")
    monkeypatch.setenv("BROADSIDE_TABLES_ENDPOINT", "https://lab.table.core.windows.net")
    checks, _ = await fabric_checks()
    assert [check.name for check in checks] == [
        "queue send",
        "queue receive",
        "table",
        "raw output",
    ]
    for check in checks:
        assert check.detail == "no response"
        assert "5671/tcp to Service Bus, 443/tcp to storage" in (check.fix or "")


async def test_unreadable_rows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADSIDE_FABRIC", "embedded")
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path))
    checks, _ = await fabric_checks()
    assert {check.name: check.ok for check in checks}["rows"]
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    unreadable = {"tokens": "rogue", "schedules": "weekly", "runs": "0.x"}
    for partition, key in unreadable.items():
        await fabric.private.upsert(make_row(partition, key, {"json": "["}))
    await fabric.results.upsert(make_row("presence", "client.c1", {"json": "{}"}))
    # This row is valid.
    await fabric.private.upsert(make_row("runs", "open.x", {}))
    await fabric.close()
    checks, _ = await fabric_checks()
    [result] = [check for check in checks if check.name == "rows"]
    assert not result.ok
    assert not result.required
    assert "4 rows cannot be read" in result.detail
    for partition, key in (*unreadable.items(), ("presence", "client.c1")):
        assert f"{partition}|{key}" in result.detail


@pytest.mark.parametrize(("fabric", "is_required"), [("embedded", False), ("http", True)])
def test_bad_clock_is_an_error_if_other_hosts_join_the_run(
    fabric: str, is_required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_FABRIC", fabric)
    monkeypatch.setenv("BROADSIDE_COORDINATOR", "https://coordinator:8443")
    clock = HostCheck(name="clock", ok=False, detail="bound 80 ms", fix="chrony", required=False)
    gate = HostCheck(name="start gate", ok=False, detail="not built", required=False)
    assert [check.required for check in require_clock([clock, gate])] == [is_required, False]


def test_clock_stays_a_note_if_the_settings_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADSIDE_FABRIC", "unknown")
    clock = HostCheck(name="clock", ok=False, detail="bound 80 ms", required=False)
    assert require_clock([clock]) == [clock]
