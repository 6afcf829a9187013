"""The command behind a switch of the firewall's modes, against a Resource Manager of our own."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from coordinator.device.policy_switch import POLICY as KIND
from coordinator.device.policy_switch import main, set_modes
from coordinator.device.resource_manager import Resource, ResourceError
from coordinator.studies.switch import Switch

pytestmark = pytest.mark.live

POLICY = (
    "/subscriptions/0/resourceGroups/broadside/providers/Microsoft.Network"
    "/firewallPolicies/broadside-firewall"
)


class Arm:
    """A policy at a Resource Manager: PUT under an ETag, then an operation that is polled."""

    def __init__(self) -> None:
        self.url = ""
        self.version = 1
        self.modes = {"idps": "Off", "threat": "Off"}
        self.state = "Succeeded"
        self.polls_left = 0  # until the change is through
        self.put_status = 200
        self.throttled = 0  # requests still to be answered 429
        self.rivals = 0  # PUTs before which somebody else changes the policy
        self.hides_operations = False
        self.fails = False
        self.keeps_old = False
        self.puts: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "provisioningState": self.state,
            "sku": {"tier": "Premium"},
            "threatIntelMode": self.modes["threat"],
            "intrusionDetection": {"mode": self.modes["idps"], "configuration": {"kept": True}},
        }
        return {"id": POLICY, "etag": f"v{self.version}", "properties": properties}

    def put(self, told: dict[str, Any]) -> None:
        self.puts.append(told)
        self.state, self.polls_left = "Updating", 2
        if not self.keeps_old and not self.fails:
            properties = told["properties"]
            self.modes["idps"] = properties["intrusionDetection"]["mode"]
            self.modes["threat"] = properties["threatIntelMode"]

    def poll(self) -> None:
        self.polls_left -= 1
        if self.state == "Updating" and self.polls_left <= 0:
            self.state, self.version = "Failed" if self.fails else "Succeeded", self.version + 1


class _Handler(BaseHTTPRequestHandler):
    arm: Arm

    def do_GET(self) -> None:
        if self._is_turned_away():
            return
        self.arm.poll()
        if "/operations/" not in self.path:
            self._answer(200, self.arm.body())
        elif self.arm.hides_operations:
            self._answer(403, {"error": {"code": "AuthorizationFailed"}})
        else:
            said = {"Updating": "InProgress"}.get(self.arm.state, self.arm.state)
            self._answer(200, {"status": said, "error": {"message": "no room"}})

    def do_PUT(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_turned_away():
            return
        if self.arm.rivals:
            self.arm.rivals -= 1
            self.arm.version += 1
        if self.headers["If-Match"] != self.arm.body()["etag"]:
            self._answer(412, {"error": {"code": "PreconditionFailed"}})
            return
        self.arm.put(told)
        operation = f"{self.arm.url}/subscriptions/0/operations/1?api-version=1"
        self._answer(self.arm.put_status, self.arm.body(), {"Azure-AsyncOperation": operation})

    def _is_turned_away(self) -> bool:
        if self.headers["Authorization"] != "Bearer t":
            self._answer(401, {"error": {"message": "no token"}})
        elif self.arm.throttled:
            self.arm.throttled -= 1
            self._answer(429, {})
        else:
            return False
        return True

    def _answer(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Retry-After": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def arm() -> Iterator[Arm]:
    arm = Arm()
    handler = type("Handler", (_Handler,), {"arm": arm})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    arm.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield arm
    server.shutdown()
    server.server_close()


def put(arm: Arm, token: str = "t", patience_s: float = 60, **modes: str) -> None:  # noqa: S107
    policy = Resource(
        POLICY,
        KIND,
        token=lambda: token,
        endpoint=arm.url,
        patience_s=patience_s,
        sleep=lambda _: None,
    )
    try:
        set_modes(policy, modes)
    finally:
        policy.close()


@pytest.mark.parametrize("put_status", [200, 201, 202])
@pytest.mark.parametrize("hides_operations", [False, True])
def test_a_mode_is_set_and_all_else_kept(arm: Arm, put_status: int, hides_operations: bool) -> None:
    """Also by an identity that may read the policy, and no operation of the subscription."""
    arm.put_status, arm.hides_operations, arm.throttled = put_status, hides_operations, 2
    before = arm.body()["properties"]
    put(arm, idps="Deny")
    assert arm.state == "Succeeded"
    (told,) = arm.puts
    assert told["properties"] == before | {
        "intrusionDetection": {"mode": "Deny", "configuration": {"kept": True}}
    }


def test_threat_intelligence_is_set(arm: Arm) -> None:
    put(arm, threat_intelligence="Alert")
    assert arm.modes == {"idps": "Off", "threat": "Alert"}


def test_a_mode_that_is_set_already_is_not_put_again(arm: Arm) -> None:
    put(arm, idps="Off")
    assert arm.puts == []


def test_a_change_under_way_is_waited_for(arm: Arm) -> None:
    arm.state, arm.polls_left = "Updating", 3
    put(arm, idps="Alert")
    assert arm.modes["idps"] == "Alert"


def test_somebody_elses_change_between_is_kept(arm: Arm) -> None:
    arm.rivals = 2
    put(arm, idps="Deny")
    assert len(arm.puts) == 1
    arm.rivals = 99
    with pytest.raises(ResourceError, match="somebody else"):
        put(arm, idps="Off")


def test_what_goes_wrong_is_one_line(arm: Arm) -> None:
    with pytest.raises(ResourceError, match="401 no token"):
        put(arm, token="another", idps="Deny")  # noqa: S106
    arm.keeps_old = True
    with pytest.raises(ResourceError, match="did not take the mode"):
        put(arm, idps="Deny")
    arm.fails = True
    with pytest.raises(ResourceError, match="failed: no room"):
        put(arm, idps="Deny")
    arm.throttled = 99
    with pytest.raises(ResourceError, match="no end in time: GET: 429"):
        put(arm, patience_s=-1, idps="Deny")


async def test_a_switch_runs_it(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADSIDE_AZURE_MONITOR_ENDPOINT", arm.url)
    monkeypatch.setenv("BROADSIDE_AZURE_MONITOR_TOKEN", "t")
    argv = (sys.executable, "-m", "coordinator.device.policy_switch", "--policy", POLICY, "--idps")
    switch = Switch(rest="off", states={"off": (*argv, "Off"), "deny": (*argv, "Deny")})
    await switch.set("deny")
    assert arm.modes["idps"] == "Deny"
    await switch.set("off")
    assert arm.modes["idps"] == "Off"


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--policy", "x", "--idps", "Deny"]) == 1
    assert capsys.readouterr().err.startswith("firewall_policy: firewall policy 'x'")
    with pytest.raises(SystemExit):
        main(["--policy", POLICY])
