"""Test a coordinator with sign-in and agents, using curl and the command line."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.keyserver import AUDIENCE, TENANT, KeyServer, key_server
from tests.live.live_site import HTTP, ROOT, Site, kill, wait_for_fleet
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SMALL = {
    "pairs_count": 2,
    "burst_s": 3,
    "lead_s": 3,
    "traffic.stream_bits_per_second": 20_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Site with a coordinator that requires tokens."""

    site: Site
    url: str
    operator: str
    viewer: str
    keys: KeyServer

    def request(
        self,
        method: str,
        path: str,
        token: str | None = None,
        *,
        json: object = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        signed = {"Authorization": f"Bearer {token or self.operator}"} | (headers or {})
        return HTTP.request(method, self.url + path, headers=signed, json=json)

    def launch(
        self, body: object, headers: dict[str, str] | None = None, token: str | None = None
    ) -> str:
        """Wait for the fleet to be free, then launch a run and return its id."""

        def launched() -> str | None:
            answer = self.request("POST", "/v1/runs", token, json=body, headers=headers)
            return answer.json()["run_id"] if answer.status_code == 202 else None

        result: str = wait_for("a launch", launched)
        return result

    def run(self, *arguments: str, token: str | None) -> subprocess.CompletedProcess[str]:
        """Run a ``broadside`` command against the coordinator."""
        self.site.environment.pop("BROADSIDE_TOKEN", None)
        if token is not None:
            self.site.environment["BROADSIDE_TOKEN"] = token
        try:
            return self.site.run(*arguments, "--api", self.url)
        finally:
            self.site.environment.pop("BROADSIDE_TOKEN", None)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with key_server() as keys, Site(tmp_path_factory.mktemp("signed")) as site:
        site.environment |= {
            "BROADSIDE_SIGN_IN": "on",
            "BROADSIDE_LOG_LEVEL": "DEBUG",
            "BROADSIDE_ENTRA_TENANT_ID": TENANT,
            "BROADSIDE_ENTRA_AUDIENCE": AUDIENCE,
            "BROADSIDE_ENTRA_JWKS_URL": keys.url,
        }
        made = {
            role: site.run("token", "add", f"the-{role}", "--role", role, "--expires", "1d")
            for role in ("operator", "viewer")
        }
        _, url = site.start_coordinator()
        site.start_fleet(2)
        result = Signed(
            site=site,
            url=url,
            operator=made["operator"].stdout.strip(),
            viewer=made["viewer"].stdout.strip(),
            keys=keys,
        )
        wait_for_fleet(url, 4, headers={"Authorization": f"Bearer {result.operator}"})
        yield result


def test_curl_examples_of_the_page_work(signed: Signed) -> None:
    block = re.search(r"<!-- curl: begin -->\s*```sh\n(.*?)```\s*<!-- curl: end -->", PAGE, re.S)
    assert block is not None
    lines = [line for line in block[1].replace("\\\n", "").splitlines() if line.strip()]
    curls = [line for line in lines if "curl " in line]
    assert len(curls) == 10
    auth = signed.site.folder / "me.auth"
    auth.write_text(f"Authorization: Bearer {signed.operator}")
    script = "\n".join(
        [
            "set -euo pipefail",
            f"API={signed.url}",
            f"AUTH=@{auth}",
            'JSON="Content-Type: application/json"',
            *(f"{line}\necho; echo ---" for line in curls),
        ]
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = done.stdout.split("---\n")
    assert len(answers) == 11
    assert all(answer.strip() for n, answer in enumerate(answers[:10]) if "RUN=$(" not in curls[n])
    assert '"verdict":' in done.stdout
    assert "received_payload_bits_per_second" in done.stdout


def test_launch_and_audit_record_user_and_address(signed: Signed) -> None:
    token = signed.keys.token()
    run_id = signed.launch({"scenario": "smoke", "overrides": SMALL}, token=token)
    headers = signed.request("GET", "/v1/runs").json()
    assert {h["run_id"]: h["created_by"] for h in headers}[run_id] == "gunner@example.org"
    stopped = signed.request("POST", f"/v1/runs/{run_id}/abort", json={"by": "somebody else"})
    assert stopped.json()["cancelled_by"] == "the-operator"
    audit_rows = json.loads(signed.run("audit", "-o", "json", token=signed.operator).stdout)
    rows = [
        (row["by"], row["method"], row["status"], row["from_address"])
        for row in audit_rows
        if row["run_id"] == run_id
    ]
    assert rows == [
        ("the-operator", "POST", 202, "127.0.0.1"),
        ("gunner@example.org", "POST", 202, "127.0.0.1"),
    ]


def test_idempotency_key_launches_once_across_coordinators(signed: Signed) -> None:
    body = {"scenario": "smoke", "overrides": SMALL}
    key = {"Idempotency-Key": "once"}
    first = signed.launch(body, key)
    other, url = signed.site.start_coordinator()
    try:
        again = httpx.post(
            f"{url}/v1/runs",
            json=body,
            headers=key | {"Authorization": f"Bearer {signed.operator}"},
            timeout=30,
        )
        assert again.json()["run_id"] == first
    finally:
        kill(other)
    changed = body | {"overrides": SMALL | {"burst_s": 4}}
    refused = signed.request("POST", "/v1/runs", json=changed, headers=key)
    assert refused.status_code == 409
    assert first in refused.json()["detail"]
    signed.request("POST", f"/v1/runs/{first}/abort", json={})

    others = signed.launch(body, key, signed.keys.token())
    # The same idempotency key can be used by two callers.
    assert others != first
    signed.request("POST", f"/v1/runs/{others}/abort", json={})


def test_command_line_reports_missing_or_weak_token(signed: Signed) -> None:
    none = signed.run("runs", token=None)
    assert (none.returncode, none.stdout) == (4, "")
    assert "no token" in none.stderr
    assert "BROADSIDE_TOKEN" in none.stderr
    wrong = signed.run("runs", token="broadside_" + "x" * 43)
    assert "not known" in wrong.stderr
    weak = signed.run("launch", "smoke", "--detach", token=signed.viewer)
    assert weak.returncode == 4
    assert "the-viewer has the role viewer; operator is required" in weak.stderr
    for command in (["runs"], ["aggregate"], ["agents"]):
        done = signed.run(*command, token=signed.viewer)
        assert done.returncode == 0, done.stderr
    file = signed.site.folder / "viewer.token"
    file.write_text(f"{signed.viewer}\n")
    given = signed.site.run("runs", "--api", signed.url, "--token-file", str(file))
    assert given.returncode == 0, given.stderr
    for wrong_file, parts in ((file.parent, "Is a directory"), (Path("/dev/null"), "is empty")):
        refused = signed.site.run("runs", "--api", signed.url, "--token-file", str(wrong_file))
        assert refused.returncode == 3
        assert parts in refused.stderr
    argument = signed.site.run("runs", "--api", signed.url, "--token", signed.viewer)
    assert argument.returncode == 3, (
        "a token on the command line is rejected because other users can read it"
    )
    assert signed.viewer not in argument.stderr
    # No token should be needed to access the fabric itself.
    local = signed.site.run("runs")
    assert local.returncode == 0


def test_rejects_revoked_token_within_seconds(signed: Signed) -> None:
    made = signed.site.run("token", "add", "short-lived", "--role", "viewer")
    token = made.stdout.strip()
    wait_for("an answer", lambda: signed.request("GET", "/v1/me", token).status_code == 200, 20)
    assert signed.site.run("token", "revoke", "short-lived").returncode == 0
    wait_for("a refusal", lambda: signed.request("GET", "/v1/me", token).status_code == 401, 30)
    again = signed.site.run("token", "add", "short-lived", "--role", "viewer")
    assert again.returncode == 3
    listed = json.loads(signed.site.run("token", "list", "-o", "json").stdout)
    assert {row["name"] for row in listed} >= {"the-operator", "the-viewer", "short-lived"}
    assert not any("sha256" in row for row in listed)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_event_stream_ends_with_the_token(signed: Signed, how: str) -> None:
    """Test with a run that has not ended.

    The client waits for the server to end the stream.
    """
    name = f"streaming-{how}"
    until = f"{datetime.now(UTC) + timedelta(seconds=25):%Y-%m-%dT%H:%M:%SZ}"
    ends = ("--expires", until) if how == "expired" else ()
    token = signed.site.run("token", "add", name, "--role", "viewer", *ends).stdout.strip()
    wait_for("an answer", lambda: signed.request("GET", "/v1/me", token).status_code == 200)
    run_id = signed.launch({"scenario": "smoke", "overrides": SMALL | {"lead_s": 240}})
    url = f"{signed.url}/v1/runs/{run_id}/events"
    follow = ["curl", "-sN", "--fail", "--max-time", "120", "-H", f"Authorization: Bearer {token}"]
    try:
        with subprocess.Popen([*follow, url], stdout=subprocess.PIPE, text=True) as stream:
            assert stream.stdout is not None
            assert any("event: status" in line for line in stream.stdout)
            assert stream.poll() is None
            if how == "revoked":
                assert signed.site.run("token", "revoke", name).returncode == 0
            stream.stdout.read()
            assert stream.wait(10) == 0, "curl timed out because the server did not end the stream"
        assert signed.request("GET", f"/v1/runs/{run_id}", token).status_code == 401
        assert signed.request("GET", f"/v1/runs/{run_id}/summary").status_code == 409, (
            "the run must continue"
        )
    finally:
        signed.request("POST", f"/v1/runs/{run_id}/abort", json={"by": "test"})


def test_logs_contain_no_secret(signed: Signed, tmp_path: Path) -> None:
    jwt = signed.keys.token()
    assert signed.request("GET", "/v1/runs", jwt).status_code == 200
    signed.request("GET", "/v1/runs", jwt[:-4] + "AAAA")
    text = "".join(path.read_text() for path in signed.site.folder.glob("*.log"))
    # This needs debug lines to be a useful test.
    assert "DEBUG" in text
    for secret in (signed.operator, signed.viewer, jwt, jwt.split(".")[2]):
        assert secret not in text


def test_logs_contain_no_connection_string(tmp_path: Path) -> None:
    """Test using debug logging of the SDKs and no reachable Azure services."""
    key, account_key = "c2VjcmV0LXNhcy1rZXk9", "c2VjcmV0LWFjY291bnQta2V5LXZhbHVlLWhlcmUhIQ=="
    with Site(tmp_path) as site:
        process, url = site.start_coordinator(
            BROADSIDE_LOG_LEVEL="DEBUG",
            BROADSIDE_FABRIC="azure",
            BROADSIDE_SERVICEBUS_CONNECTION_STRING="Endpoint=sb://127.0.0.1:9/;"
            f"SharedAccessKeyName=manage;SharedAccessKey={key};UseDevelopmentEmulator=true",
            BROADSIDE_TABLES_CONNECTION_STRING="DefaultEndpointsProtocol=http;AccountName=dev;"
            f"AccountKey={account_key};TableEndpoint=http://127.0.0.1:9/dev;",
        )
        assert httpx.get(f"{url}/v1/runs", timeout=60).status_code == 503

        def logged() -> str:
            return "".join(path.read_text() for path in tmp_path.glob("*.log"))

        wait_for("debug logs of the SDKs", lambda: "DEBUG" in logged())
        kill(process)
        text = logged()
    assert key not in text
    assert account_key not in text
