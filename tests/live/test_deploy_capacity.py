"""``broadside capacity`` against a Resource Manager of our own: ETags, polling, throttling."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coordinator.device.capacity import (
    FIREWALL as KIND,
)
from coordinator.device.capacity import (
    Capacity,
    FirewallCapacity,
    Record,
    raise_capacity,
    restore,
)
from coordinator.device.resource_manager import (
    Resource,
    ResourceBusy,
    ResourceRefused,
    ResourceUnavailable,
)
from tests.live.commands import Done, run_command
from tests.live.live_site import BROADSIDE, ROOT, wait_for
from tests.unit.coordinator.device.test_capacity import FIREWALL, NOW

pytestmark = pytest.mark.live

TOKEN = "BROADSIDE_AZURE_MONITOR_TOKEN"  # noqa: S105 - a variable's name


class Arm:
    """A firewall at a Resource Manager: PUT under an ETag, 202 and polling, 429 when told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 1
        self.capacity: dict[str, int] | None = {"minCapacity": 2, "maxCapacity": 20}
        self.wanted: dict[str, int] | None = None
        self.state = "Succeeded"
        self.tier = "Premium"
        self.polls_left = 0
        self.polls_each = 2  # polls for which a change goes on
        self.throttled = 0  # requests still to be answered 429
        self.broken = 0  # requests still to be answered 503
        self.fails_at: int | None = None  # minCapacity whose change ends as Failed
        self.refuses_puts = 0
        self.rival: dict[str, int] | None = None  # what somebody else sets before our first PUT
        self.keeps_old = False  # takes a PUT and changes nothing
        self.puts: list[dict[str, Any]] = []
        self.observed: list[float | None] = [0, 20, None]

    def body(self) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "sku": {"name": "AZFW_VNet", "tier": self.tier},
            "provisioningState": self.state,
            "ipConfigurations": [{"name": "data"}],
        }
        if self.capacity is not None:
            properties["autoscaleConfiguration"] = self.capacity
        return {"name": "fw", "location": "eastus", "zones": ["1"], "properties": properties}

    @property
    def etag(self) -> str:
        return f'W/"{self.version}"'

    def poll(self) -> str:
        if self.state == "Updating":
            self.polls_left -= 1
            if self.polls_left <= 0:
                self.state, self.version = "Succeeded", self.version + 1
                least = (self.wanted or {}).get("minCapacity")
                if self.fails_at is not None and least == self.fails_at:
                    return "Failed"
                if not self.keeps_old:
                    self.capacity = self.wanted
        return "InProgress" if self.state == "Updating" else "Succeeded"


class _Handler(BaseHTTPRequestHandler):
    arm: Arm

    def do_GET(self) -> None:
        with self.arm.lock:
            if self._is_turned_away():
                return
            if "/operations/" in self.path:
                status = self.arm.poll()
                error = {"error": {"code": "X", "message": "no room"}} if status == "Failed" else {}
                self._answer(200, {"status": status, **error}, {"Retry-After": "0"})
            elif "Microsoft.Insights" in self.path:
                data = [
                    {"timeStamp": f"2026-11-21T12:0{at}:00Z", "minimum": value}
                    for at, value in enumerate(self.arm.observed)
                ]
                self._answer(200, {"value": [{"timeseries": [{"data": data}]}]})
            else:
                self._answer(200, self.arm.body(), {"ETag": self.arm.etag})

    def do_PUT(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.arm.lock:
            if self._is_turned_away():
                return None
            if self.arm.rival is not None:
                self.arm.capacity, self.arm.rival = self.arm.rival, None
                self.arm.version += 1
            if self.headers["If-Match"] != self.arm.etag:
                return self._answer(412, {"error": {"code": "PreconditionFailed"}})
            if self.arm.refuses_puts:
                self.arm.refuses_puts -= 1
                return self._answer(403, {"error": {"message": "AuthorizationFailed"}})
            if self.arm.state != "Succeeded":
                return self._answer(409, {"error": {"message": "busy"}}, {"Retry-After": "0"})
            self.arm.puts.append(told)
            wanted = told["properties"]["autoscaleConfiguration"]
            gone = all(value is None for value in wanted.values())
            self.arm.wanted = None if gone else wanted
            self.arm.state, self.arm.polls_left = "Updating", self.arm.polls_each
            self.arm.version += 1
            host = f"http://{self.headers['Host']}"
            headers = {"Azure-AsyncOperation": f"{host}/operations/1", "Retry-After": "0"}
            return self._answer(202, self.arm.body(), headers)

    def _is_turned_away(self) -> bool:
        if self.headers["Authorization"] != "Bearer t":
            self._answer(401, {"error": {"message": "no token"}})
        elif self.arm.throttled:
            self.arm.throttled -= 1
            self._answer(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
        elif self.arm.broken:
            self.arm.broken -= 1
            self._answer(503, {}, {"Retry-After": "0"})
        else:
            return False
        return True

    def _answer(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def arm() -> Iterator[tuple[Arm, str]]:
    standing = Arm()
    handler = type("Handler", (_Handler,), {"arm": standing})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield standing, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def nap(_: float) -> None:
    time.sleep(0.002)


def firewall(
    url: str, *, sleep: Callable[[float], None] = nap, patience_s: float = 60.0
) -> FirewallCapacity:
    resource = Resource(
        FIREWALL, KIND, token=lambda: "t", endpoint=url, sleep=sleep, patience_s=patience_s
    )
    return FirewallCapacity(resource)


OLD = Capacity(min_count=2, max_count=20)
NEW = Capacity(min_count=20, max_count=20)


def test_raised_and_restored(arm: tuple[Arm, str], tmp_path: Path) -> None:
    """By whole PUTs under an ETag, through throttling and errors, waiting for each to end."""
    standing, url = arm
    standing.throttled, standing.broken = 2, 1
    opened, record = firewall(url), Record.of(FIREWALL, tmp_path)
    assert raise_capacity(opened, NEW, record, NOW) == OLD
    assert opened.read().capacity == NEW
    assert record.read() == OLD
    assert restore(opened, record) == OLD
    assert opened.read().capacity == OLD
    assert record.read() is None
    assert restore(opened, record) is None
    assert [put["properties"]["ipConfigurations"] for put in standing.puts] == [
        [{"name": "data"}]
    ] * 2
    assert all(put["zones"] == ["1"] for put in standing.puts)


def test_a_firewall_that_was_left_to_itself_is_left_so_again(
    arm: tuple[Arm, str], tmp_path: Path
) -> None:
    standing, url = arm
    standing.capacity = None
    opened, record = firewall(url), Record.of(FIREWALL, tmp_path)
    raise_capacity(opened, NEW, record, NOW)
    restore(opened, record)
    assert standing.capacity is None
    assert standing.puts[-1]["properties"]["autoscaleConfiguration"] == {
        "minCapacity": None,
        "maxCapacity": None,
    }


def test_a_change_that_fails_ends_with_the_old_bounds(arm: tuple[Arm, str], tmp_path: Path) -> None:
    standing, url = arm
    standing.fails_at = 20
    opened, record = firewall(url), Record.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceRefused, match="failed: no room"):
        raise_capacity(opened, NEW, record, NOW)
    assert standing.capacity == {"minCapacity": 2, "maxCapacity": 20}
    assert record.read() is None


def test_an_interrupt_while_it_scales_ends_with_the_old_bounds(
    arm: tuple[Arm, str], tmp_path: Path
) -> None:
    standing, url = arm
    standing.polls_each = 3
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(_: float) -> None:
        time.sleep(0.002)
        standing.poll()  # Azure goes on meanwhile
        for interrupt in interrupts:
            raise interrupt

    opened, record = firewall(url, sleep=interrupted), Record.of(FIREWALL, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        raise_capacity(opened, NEW, record, NOW)
    assert standing.capacity == {"minCapacity": 2, "maxCapacity": 20}
    assert record.read() is None


def test_what_somebody_else_sets_meanwhile_is_not_overwritten(
    arm: tuple[Arm, str], tmp_path: Path
) -> None:
    standing, url = arm
    standing.rival = {"minCapacity": 5, "maxCapacity": 9}
    opened, record = firewall(url), Record.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceBusy, match="5 to 9 units meanwhile"):
        raise_capacity(opened, NEW, record, NOW)
    assert standing.capacity == {"minCapacity": 5, "maxCapacity": 9}
    assert standing.puts == []
    assert record.read() is None


def test_a_failed_restore_can_be_tried_again(arm: tuple[Arm, str], tmp_path: Path) -> None:
    standing, url = arm
    opened, record = firewall(url), Record.of(FIREWALL, tmp_path)
    raise_capacity(opened, NEW, record, NOW)
    standing.refuses_puts = 1
    with pytest.raises(ResourceRefused, match="Network Contributor"):
        restore(opened, record)
    assert record.read() == OLD
    assert restore(opened, record) == OLD


def test_a_put_that_was_taken_and_ignored_is_told(arm: tuple[Arm, str], tmp_path: Path) -> None:
    standing, url = arm
    standing.keeps_old = True
    with pytest.raises(ResourceUnavailable, match="keeps 2 to 20 units"):
        raise_capacity(firewall(url), NEW, Record.of(FIREWALL, tmp_path), NOW)


def test_a_basic_firewall_is_refused_before_anything_is_written(
    arm: tuple[Arm, str], tmp_path: Path
) -> None:
    standing, url = arm
    standing.tier = "Basic"
    record = Record.of(FIREWALL, tmp_path)
    with pytest.raises(ResourceRefused, match="fixed capacity"):
        raise_capacity(firewall(url), NEW, record, NOW)
    assert (standing.puts, record.read()) == ([], None)


def test_a_service_that_stays_away_is_told_in_time(arm: tuple[Arm, str]) -> None:
    standing, url = arm
    standing.broken = 10_000
    with pytest.raises(ResourceUnavailable, match="503"):
        firewall(url, patience_s=0.1).read()


def test_the_observed_capacity_is_the_newest_that_is_known(arm: tuple[Arm, str]) -> None:
    found = firewall(arm[1]).observed(NOW)
    assert found is not None
    assert (found.units_count, found.at.minute) == (20, 1)


# The command --------------------------------------------------------------------------------------


def environment(url: str) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "BROADSIDE_AZURE_MONITOR_ENDPOINT": url,
        TOKEN: "t",
        "BROADSIDE_AZURE_MONITOR_RESOURCE_ID": FIREWALL,
    }


Command = Callable[..., Done]


@pytest.fixture
def command(
    arm: tuple[Arm, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    """Runs `broadside capacity` against the standing Resource Manager."""

    def run(verb: str, *rest: str, bearer: str = "t") -> Done:
        with monkeypatch.context() as patch:
            for name, value in (environment(arm[1]) | {TOKEN: bearer}).items():
                patch.setenv(name, value)
            argv = ["capacity", verb, "--records", str(tmp_path / "records"), *rest]
            return run_command(argv, patch, capfd)

    return run


def test_a_command_runs_while_the_capacity_is_raised(
    arm: tuple[Arm, str], command: Command
) -> None:
    standing, _ = arm
    done = command("set", "--min", "20", "--max", "20", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    assert "restored: 2 to 20 units" in done.stderr
    wanted = [put["properties"]["autoscaleConfiguration"]["minCapacity"] for put in standing.puts]
    assert wanted == [20, 2]


def test_a_terminated_command_puts_it_back(arm: tuple[Arm, str], tmp_path: Path) -> None:
    standing, url = arm
    words = ["set", "--min", "20", "--max", "20", "--records", str(tmp_path), "--", "sleep", "60"]
    process = subprocess.Popen(
        [*BROADSIDE, "capacity", *words],
        env=environment(url), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(
            "the raised capacity",
            lambda: standing.capacity == {"minCapacity": 20, "maxCapacity": 20},
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    assert standing.capacity == {"minCapacity": 2, "maxCapacity": 20}


def test_set_show_restore(command: Command) -> None:
    done = command("set", "--min", "6", "--max", "10")
    assert done.returncode == 0, done.stderr
    assert "put it back with: broadside capacity restore" in done.stdout
    shown = json.loads(command("show", "--json").stdout)
    assert (shown["min_count"], shown["max_count"]) == (6, 10)
    assert shown["to_restore"] == {"min_count": 2, "max_count": 20}
    assert shown["observed_count"] == 20
    assert "restored: 2 to 20" in command("restore").stdout
    assert "nothing to restore" in command("restore").stdout


def test_wrong_usage_and_wrong_rights(command: Command) -> None:
    wrong = command("set", "--min", "5", "--max", "6")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (3, 1)
    assert "2 or more above it" in wrong.stderr
    refused = command("show", bearer="other")
    assert refused.returncode == 4
    assert "Network Contributor" in refused.stderr


def test_a_command_that_is_none_leaves_the_old_bounds(
    arm: tuple[Arm, str], command: Command
) -> None:
    done = command("set", "--min", "20", "--max", "20", "--", "/no/such/command")
    assert done.returncode == 4
    assert "no such command" in done.stderr
    assert arm[0].capacity == {"minCapacity": 2, "maxCapacity": 20}
