"""Tests for config that need processes, sockets or real time."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from broadside.coordinator.cli.telemetry_checks import check_telemetry_sources
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
)
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator.device.telemetry.test_config import (
    BEGUN,
    LINES,
    opened,
    read,
)


class Device(BaseHTTPRequestHandler):
    """HTTP handler to answer all GET requests as given in ``answer``."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.headers.get("X-Key") == "s3cret" else 401)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        """Do not write a log to standard error."""


@pytest.fixture
def device() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Device)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def rest(device: str, folder: Path, answer: Any, key: str = "s3cret") -> DeviceTelemetry:
    """Return the telemetry when a device is polled once."""
    Device.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    (folder / "key").write_text(key)
    lines = (
        f'url = "{device}/status"\nheader = "X-Key"\n'
        'header_value = { file = "key" }\nat_path = "at"\n[[source.read]]\nquantity = "cpu_ratio"\n'
        'path = "cpu.all"\nscale = 0.01\n[[source.read]]\nquantity = "sessions_count"\n'
        'path = "units"'
    )
    telemetry = opened(folder, "rest", lines)
    assert isinstance(telemetry, PolledSource)
    await telemetry.poll()
    now, day = utc_now(), timedelta(days=1)
    return await telemetry.query(min(BEGUN, now) - day, max(BEGUN, now) + day)


async def test_prometheus_password_is_not_shown_in_name_or_error(
    tmp_path: Path,
) -> None:
    lines = LINES["prometheus"].replace("http://p", "http://bob:s3cret@127.0.0.1:1")
    telemetry = opened(tmp_path, "prometheus", lines)
    assert telemetry.name == "prometheus http://bob:***@127.0.0.1:1"
    with pytest.raises(TelemetryError) as caught:
        await read(telemetry)
    assert "s3cret" not in str(caught.value)


async def test_rest_reads_numbers_and_named_numbers(device: str, tmp_path: Path) -> None:
    at_s = BEGUN.timestamp() + 3
    reported = await rest(
        device, tmp_path, {"at": at_s, "cpu": {"all": 55}, "units": {"u1": 7, "u2": "9"}}
    )
    assert by_name(reported) == {
        (Quantity.CPU, ""): pytest.approx(0.55),
        (Quantity.SESSIONS, "u1"): 7,
        (Quantity.SESSIONS, "u2"): 9,
    }
    # This clock is days off, so the time of the request is used.
    assert reported.series[0].at_s[0] == pytest.approx(reported.read_at.timestamp(), abs=5)
    [issue] = reported.issues
    assert issue.kind is IssueKind.CLOCK


def by_name(telemetry: DeviceTelemetry) -> dict[tuple[Quantity, str], float]:
    return {(item.quantity, item.instance): float(item.values[0]) for item in telemetry.series}


async def test_rest_reads_lists_by_index_and_skips_invalid_numbers(
    device: str, tmp_path: Path
) -> None:
    """A path such as ``cores[*].usage`` can return a list. If no offset is given, use UTC."""
    invalid = [55, None, "n/a", True, "7e1", [3], {"x": 1}, -1]
    at = f"{BEGUN:%Y-%m-%dT%H:%M:%S}"
    reported = await rest(device, tmp_path, {"at": at, "cpu": {"all": invalid}, "units": {}})
    assert by_name(reported) == {
        (Quantity.CPU, "0"): pytest.approx(0.55),
        (Quantity.CPU, "4"): pytest.approx(0.7),
    }
    off_s = BEGUN.timestamp() - reported.read_at.timestamp()
    unreported, clock = reported.issues
    assert unreported.text == "sessions_count: nothing at units"
    [stated_s] = re.findall(r"stamps are ([0-9.]+) s", clock.text)
    assert float(stated_s) == pytest.approx(abs(off_s), abs=5)


@pytest.mark.parametrize(
    ("answer", "key", "expected"),
    [
        (b"<html>", "s3cret", "not JSON that can be read"),
        ({"at": 1}, "wrong", "HTTP 401"),
        (b"[" * 5000, "s3cret", "not JSON that can be read"),
        ({"at": "noon", "cpu": {"all": 1}}, "s3cret", "at_path: not a time"),
    ],
)
async def test_unreadable_rest_answer_is_an_issue(
    answer: Any, key: str, expected: str, device: str, tmp_path: Path
) -> None:
    reported = await rest(device, tmp_path, answer, key)
    assert expected in reported.issues[0].text
    assert not reported.series
    assert "s3cret" not in str(reported.issues)


@pytest.mark.parametrize(
    ("off_s", "expected"),
    [
        (0.0, "newest [0-9.]+ m?s old"),
        (3600.0, "3[56][0-9]{2}.[0-9] s ahead of the coordinator's clock .*: set its clock"),
        (-7200.0, "7[12][0-9]{2}.[0-9] s behind .*: set its clock, or check at_path"),
    ],
)
async def test_doctor_reports_the_clock_offset_of_an_answer(
    off_s: float, expected: str, device: str, tmp_path: Path
) -> None:
    at_s = round(utc_now().timestamp() + off_s)
    await rest(device, tmp_path, {"at": at_s, "cpu": {"all": 55}, "units": 3})
    check, _ = await check_telemetry_sources(tmp_path / "telemetry.toml")
    assert check.ok is (off_s == 0)
    assert re.search(expected, check.detail), check.detail
    assert "s3cret" not in check.detail
