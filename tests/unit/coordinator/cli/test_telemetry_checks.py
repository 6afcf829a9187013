"""Tests for the telemetry checks in doctor."""

import time
from pathlib import Path

import pytest

from broadside.coordinator.cli import telemetry_checks
from broadside.coordinator.cli.telemetry_checks import check_telemetry_sources
from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledEntry,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import TelemetryError


def entry(folder: Path, values: str, *, at_s: float = 0.0, more: str = "", scale: float = 1) -> str:
    """Add a CSV source. The time of the last row is relative to now."""
    now_s = time.time()
    rows = [f"{now_s + at_s + n - 3.5:.3f},{value}" for n, value in enumerate(values.split(), 1)]
    name = f"{len(list(folder.glob('*.csv')))}.csv"
    (folder / name).write_text("\n".join(["time,value", *rows, ""]))
    quantity = "latency_s" if "ms" in more else "cpu_ratio"
    return (
        f'[[source]]\ndevice = "fw"\ntype = "csv"\nfile = "{name}"\n'
        f'read = [{{quantity = "{quantity}", column = "value", scale = {scale}}}]\n'
    )


@pytest.mark.parametrize(
    ("given", "message", "ok"),
    [
        ({"values": "0.3 0.4 0.5"}, "CPU 50.00 %; newest ", True),
        ({"values": "30 40 50", "scale": 0.01}, "CPU 50.00 %; newest ", True),
        ({"values": "30 40 50"}, "cpu_ratio is 50, over 1: a percentage needs scale = 0.01", False),
        ({"values": "900", "more": "ms"}, "latency_s is 900 s: milliseconds need scale", False),
        ({"values": "0.3", "at_s": -7200.0}, "has no values for the last 15 minutes", False),
    ],
)
async def test_check_reports_values_or_the_error(
    given: dict[str, str], message: str, ok: bool, tmp_path: Path
) -> None:
    path = tmp_path / "telemetry.toml"
    path.write_text(entry(tmp_path, **given))  # type: ignore[arg-type]
    check, _ = await check_telemetry_sources(path)
    assert message in check.detail
    assert (check.ok, check.fix is None) == (ok, ok)


async def test_invalid_entry_does_not_hide_other_entries(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.toml"
    wrong = '[[source]]\ndevice = "fw-b"\ntype = "snmp"\naddress = "fw"\nprofile = "pan"\n'
    path.write_text(wrong + entry(tmp_path, "0.3"))
    bad, good, _ = await check_telemetry_sources(path)
    assert (bad.name, bad.ok, good.ok) == ("telemetry fw-b (snmp)", False, True)
    assert "community: not set" in bad.detail
    assert "write community" in (bad.fix or "")


async def test_missing_telemetry_file_is_reported(tmp_path: Path) -> None:
    [counter] = await check_telemetry_sources(None)
    assert (counter.name, counter.ok, counter.required) == ("device counter", False, False)
    [check] = await check_telemetry_sources(tmp_path / "none.toml")
    assert "No such file" in check.detail


@pytest.mark.parametrize(
    ("answers", "ok", "message"),
    [
        ("++", True, "CPU 37.00 %; newest "),
        ("-+-+", True, "2 of its first questions had no answer"),
        ("--+-", False, "no answer of the device"),
        ("----", False, "no answer of the device"),
    ],
)
async def test_unanswered_query_is_retried(
    answers: str, ok: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = iter(answers)

    async def ask() -> PollResult:
        if next(remaining) == "-":
            raise TelemetryError("no answer of the device")
        return PollResult(readings=[PolledValue(quantity=Quantity.CPU, value=0.37)])

    fields = {"device": "fw", "type": "snmp", "poll_s": 1.0}
    source = PolledSource(
        PolledEntry.model_validate(fields),
        PolledDevice(request=ask, quantities=[Quantity.CPU], name="snmp"),
    )
    monkeypatch.setattr(telemetry_checks, "open_entry", lambda entry: source)
    monkeypatch.setattr(telemetry_checks, "AGAIN_S", 0.0)
    path = tmp_path / "telemetry.toml"
    path.write_text('[[source]]\ndevice = "fw"\ntype = "snmp"\n')
    check, _ = await check_telemetry_sources(path)
    assert check.ok is ok, check.detail
    assert message in check.detail
    assert next(remaining, None) is None
