"""Tests for the telemetry configuration.

An error is given in one line, and must not show a secret.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest

from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    drop_invalid,
)
from broadside.coordinator.device.telemetry import SOURCES, device_ping
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.prometheus import PrometheusEntry, PrometheusSource
from broadside.coordinator.device.telemetry.snmp_profiles import BUILT_IN, read_profiles
from broadside.coordinator.device.telemetry.source import TelemetryError, TelemetrySource
from tests.unit.coordinator.device.telemetry.test_prometheus import Server

BEGUN = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIREWALL = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/azureFirewalls/fw"
LINES: dict[str, str] = {
    "lab": 'file = "counter.csv"',
    "ping": 'address = "127.0.0.1"\nicmp = false\ntcp_port = 1',
    "azure-logs": f'resource_id = "{FIREWALL}"',
    "azure-monitor": f'resource_id = "{FIREWALL}"',
    "csv": 'file = "x.csv"\nread = [{quantity = "cpu_ratio", column = "cpu", scale = 0.01}]',
    "prometheus": 'url = "http://p"\nread = [{quantity = "cpu_ratio", query = "up"}]',
    "rest": 'url = "http://127.0.0.1:1/x"\nread = [{quantity = "cpu_ratio", path = "cpu"}]',
    "snmp": 'address = "[2001:db8::1]:161"\ncommunity = { file = "secret" }\nprofile = "fortinet"',
    "url": 'url = "http://127.0.0.1:1/health"',
}
# These have no history, so they have to be polled.
POLLED = {"ping", "rest", "snmp", "url"}


def opened(folder: Path, source: str, lines: str) -> TelemetrySource:
    (folder / "secret").write_text("s3cret")
    path = folder / "telemetry.toml"
    path.write_text(f'[[source]]\ndevice = "fw"\ntype = "{source}"\n{lines}\n')
    [telemetry] = open_telemetry(path)
    return telemetry


async def read(telemetry: TelemetrySource, minutes: int = 5) -> DeviceTelemetry:
    return await telemetry.query(BEGUN, BEGUN + timedelta(minutes=minutes))


def test_all_sources_have_a_case() -> None:
    assert sorted(LINES) == sorted(SOURCES)
    assert open_telemetry(None) == ()


def test_all_types_are_documented() -> None:
    page = (Path(__file__).parents[5] / "docs" / "telemetry.md").read_text("utf-8")
    assert [name for name in SOURCES if f"| `{name}` |" not in page] == []


def test_documented_examples_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[5] / "docs" / "telemetry.md").read_text("utf-8")
    text = "\n".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    text = text.replace("...", "s/resourceGroups/g/providers/Microsoft.Network")
    for variable in re.findall(r'env = "(\w+)"', text):
        monkeypatch.setenv(variable, "s3cret")
    for name in re.findall(r'\{ file = "([\w-]+)"', text):
        (tmp_path / name).write_text("s3cret")
    monkeypatch.setattr(device_ping, "may_echo", lambda address: True)
    path = tmp_path / "telemetry.toml"
    path.write_text(text)
    counting = [item.entry.type for item in open_telemetry(path) if item.entry.byte_counter]
    assert counting == ["snmp", "azure-monitor", "prometheus", "rest"]


@pytest.mark.parametrize("source", LINES)
def test_opens_all_sources_with_their_device(source: str, tmp_path: Path) -> None:
    telemetry = opened(tmp_path, source, LINES[source])
    assert isinstance(telemetry, PolledSource) is (source in POLLED)
    assert telemetry.entry.device == "fw"
    local = {"ping": Quantity.PING_TCP, "url": Quantity.URL_TIME}
    reported_by_all = local.get(source, Quantity.CPU)
    assert (reported_by_all in telemetry.quantities) is (
        source not in ("azure-logs", "azure-monitor", "lab")
    )


@pytest.mark.parametrize(
    ("source", "lines", "expected"),
    [
        ("snmmp", "", "type 'snmmp' is unknown; use one of azure-logs, azure-monitor"),
        ("snmp", "", "fw: address: Field required; fields of snmp: type, device"),
        (
            "snmp",
            'address = "fw"\ncommunity = "s3cret"',
            "fw: community: Value error, write { env =",
        ),
        ("snmp", 'address = "fw"\nprofile = "pan"', "fw: community: not set; write community"),
        ("snmp", 'address = "fw:x"\ncommunity = { file = "secret" }', "address 'fw:x': write host"),
        (
            "snmp",
            'address = "fw"\ncommunity = { file = "secret" }\nprofile = "panos"',
            "profile 'panos' is unknown; use one of cisco, cisco-asa, fortinet",
        ),
        (
            "snmp",
            'address = "fw"\ncommunity = { file = "no" }\nprofile = "pan"',
            "no: No such file",
        ),
        ("snmp", 'address = "fw"\ncommunity = { file = "secret" }', "profile, interfaces: neither"),
        ("snmp", 'address = "fw"\nversion = "3"', "user: not set; version 3 needs one"),
        (
            "rest",
            'url = "https://x"\nread = [{quantity = "cpu_ratio", path = "a[*"}]',
            "fw: path: ",
        ),
        (
            "rest",
            (
                'url = "http://x"\nheader_value = { file = "secret" }\n'
                'read = [{quantity = "cpu_ratio", path = "a"}]'
            ),
            "a secret is sent over https only",
        ),
        ("azure-monitor", 'resource_id = "fw"', "'fw': not a resource id"),
        (
            "csv",
            'file = "x.csv"\nread = [{quantity = "seen_units_count", column = "units"}]',
            "seen_units_count is measured by the fleet; use units_count",
        ),
    ],
)
def test_invalid_entry_is_a_one_line_error_without_the_secret(
    source: str, lines: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(TelemetryError) as caught:
        opened(tmp_path, source, lines)
    assert expected in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reads_all_vendor_profiles() -> None:
    profiles = read_profiles(BUILT_IN)
    assert {"cisco", "fortinet", "host-resources", "pan"} <= profiles.keys()
    assert all(profile.mib for profile in profiles.values())
    # See the documentation by Fortinet and Cisco for these.
    fortinet = {item.quantity: item.oid for item in profiles["fortinet"].read}
    assert fortinet[Quantity.CPU] == "1.3.6.1.4.1.12356.101.4.1.3.0"
    assert fortinet[Quantity.SESSIONS] == "1.3.6.1.4.1.12356.101.4.1.8.0"
    assert profiles["cisco"].read[0].oid == "1.3.6.1.4.1.9.9.109.1.1.1.1.6"


async def test_csv_reads_a_column_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    rows = ["time,cpu", *(f"{BEGUN.timestamp() + 7 * n},{30 + n}" for n in range(3))]
    (tmp_path / "x.csv").write_text("\n".join([*rows, f"{BEGUN.timestamp() + 30},", ""]))
    [series] = (await read(opened(tmp_path, "csv", LINES["csv"]))).series
    np.testing.assert_allclose(series.values, [0.3, 0.31, 0.32, np.nan])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "time,load\n1,2\n",
            r"fw: file .*x.csv: row 1: no column cpu \(found: time, load\).* set time_column",
        ),
        ("at,cpu\n1,2\n", "fw: file .*x.csv: row 1: no column time, .* set time_column and column"),
        ("time,cpu\n1795176120,37 %\n", "fw: file .*x.csv: row 2, cpu: '37 %': not a number"),
        (None, "fw: file .*x.csv: No such file"),
    ],
)
async def test_invalid_csv_error_contains_the_field_of_the_source(
    lines: str | None, expected: str, tmp_path: Path
) -> None:
    if lines is not None:
        (tmp_path / "x.csv").write_text(lines)
    with pytest.raises(TelemetryError, match=expected):
        await read(opened(tmp_path, "csv", LINES["csv"]))


async def test_prometheus_reads_instances_by_label() -> None:
    points = [[BEGUN.timestamp() + 15 * n, str(20 + n)] for n in range(3)]
    result = [{"metric": {"core": name}, "values": points} for name in ("0", "1")]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    query = {"quantity": "cpu_ratio", "query": "q", "instance_label": "core", "scale": 0.01}
    fields = {"type": "prometheus", "device": "fw", "url": "http://p", "read": [query]}
    entry = PrometheusEntry.model_validate(fields)
    telemetry = PrometheusSource(entry, transport=httpx.MockTransport(Server(answer)))
    reported = await read(telemetry)
    assert [item.instance for item in reported.series] == ["0", "1"]
    np.testing.assert_allclose(reported.series[0].values, [0.2, 0.21, 0.22])


async def test_percentage_without_scale_is_unknown_and_reported(tmp_path: Path) -> None:
    """If no scale is set, 37 would be 3,700 % CPU."""
    rows = [f"{BEGUN.timestamp() + n},{cpu}" for n, cpu in enumerate((0.4, 37, 0.5, 41))]
    (tmp_path / "x.csv").write_text("\n".join(["time,cpu", *rows, ""]))
    source = opened(tmp_path, "csv", LINES["csv"].replace(", scale = 0.01", ""))
    reported = drop_invalid(await read(source))
    np.testing.assert_allclose(reported.series[0].values, [0.4, np.nan, 0.5, np.nan])
    [issue] = reported.issues
    assert (issue.kind, issue.count) == (IssueKind.MISSING, 2)
    assert issue.text == "cpu_ratio: 41 is not possible: a percentage needs scale = 0.01"
