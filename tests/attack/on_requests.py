"""Attacks on the coordinator's API: authentication, requests, and cross-site requests."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi import FastAPI

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.auth.entra import Entra, entra_trust
from broadside.coordinator.auth.permissions import PERMISSIONS
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.outage_log import utc_now
from tests.attack import Attack, attack_variants, lasting
from tests.keyserver import KeyServer, key_server
from tests.synthetic_runs import store_run

CALLER: Final = "caller to coordinator"
VIEWER: Final = "viewer to operator"
BROWSER: Final = "browser"
RUN: Final = "held-run"
_BODY_MAX_BYTES: Final = 100_000
_NAMES: Final = {
    "run_id": RUN,
    "pair": "pair-001",
    "burst": "1",
    "study_id": "study-1",
    "sequence_number": "1",
    "agent_id": "client-001",
    "name": "residual",
    "version": "0",
}
MARK: Final = "<script>alert(1)</script>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Client of an application in this process that sends one request at a time."""

    app: FastAPI
    base_url: str

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self.base_url) as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Coordinator with its API, one run and one caller of each role.

    Attributes:
        signed: Client with sign-in on.
        local: Client of a loopback API without sign-in.
    """

    fabric: Fabric
    signed: Caller
    local: Caller
    keys: KeyServer
    tokens: dict[str, str]


@cache
def site() -> Site:
    """Create the site once, because it should survive all attacks."""
    folder = Path(lasting(tempfile.TemporaryDirectory()))
    keys = lasting(key_server())
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    tokens = Tokens(fabric.private)

    async def prepare() -> dict[str, str]:
        now, hour = utc_now(), timedelta(hours=1)
        await store_run(fabric, RUN, labels={"note": MARK, "sum": '=HYPERLINK("http://x")'})
        made = {
            name: await tokens.add(name, access, by="x", now=now, expires_at=end)
            for name, access, end in (
                ("viewer", Access.VIEWER, None),
                ("operator", Access.OPERATOR, None),
                ("second", Access.OPERATOR, None),
                ("expired", Access.OPERATOR, now - hour),
                ("revoked", Access.OPERATOR, None),
            )
        }
        await tokens.revoke("revoked", now=now)
        return made

    made = asyncio.run(prepare())
    trust = entra_trust(keys.settings())
    assert trust is not None
    sign_in = SignIn(tokens, Entra(trust))

    def client(guard: AuthConfig, base_url: str) -> Caller:
        app = create_app(Coordinator(fabric), tick_s=None, guard=guard)
        return Caller(app=app, base_url=base_url)

    signed = AuthConfig(sign_in=sign_in, request_max_bytes=_BODY_MAX_BYTES, import_max_bytes=10**6)
    return Site(
        fabric=fabric,
        signed=client(signed, "https://broadside.example"),
        local=client(AuthConfig(loopback_only=True), "http://127.0.0.1:8000"),
        keys=keys,
        tokens=made,
    )


def _stopped(response: Any, *expected: int) -> str:
    assert response.status_code in expected, (response.status_code, response.text[:300])
    assert "Traceback" not in response.text
    return f"{response.status_code} {response.json().get('detail', '')}"[:100]


# Who asks ----------------------------------------------------------------------------------------


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {site().tokens[role]}"}


def _route(
    headers: Callable[[], Mapping[str, str]], expected: int, method: str, template: str
) -> str:
    path = template.format_map(_NAMES)
    return _stopped(site().signed.request(method, path, headers=headers(), json={}), expected)


def _launch(header: Callable[[], str], expected: int = 401) -> str:
    fields = {"Authorization": header()}
    return _stopped(site().signed.post("/v1/runs", headers=fields, json={}), expected)


_HEADERS: Final[dict[str, Callable[[], str]]] = {
    "an empty token": lambda: "Bearer ",
    "a password": lambda: "Basic b3BlcmF0b3I6b3BlcmF0b3I=",
    "a guessed token": lambda: "Bearer broadside_" + "A" * 43,
    "a token's hash in its place": lambda: "Bearer broadside_" + "0" * 64,
    "a token cut short": lambda: f"Bearer {site().tokens['operator'][:-1]}",
    "a token in other letters": lambda: (
        f"Bearer broadside_{site().tokens['operator'][10:].swapcase()}"
    ),
    "an expired token": lambda: f"Bearer {site().tokens['expired']}",
    "a revoked token": lambda: f"Bearer {site().tokens['revoked']}",
    "a token of 100 kB": lambda: "Bearer " + "a" * 100_000,
    "alg none": lambda: f"Bearer {site().keys.unsigned()}",
    "HMAC by the public key": lambda: f"Bearer {site().keys.confused()}",
    "signed by a foreign key": lambda: f"Bearer {site().keys.token(key=site().keys.other_key)}",
    "a key that is not published": lambda: f"Bearer {site().keys.token(key_id='../../x')}",
    "expired a day ago": lambda: f"Bearer {site().keys.token(exp=1)}",
    "not valid yet": lambda: f"Bearer {site().keys.token(nbf=2**40)}",
    "made for another application": lambda: f"Bearer {site().keys.token(aud='api://other')}",
    "of another issuer": lambda: f"Bearer {site().keys.token(iss='https://x.example')}",
    "of another tenant": lambda: f"Bearer {site().keys.token(tid='other')}",
    "without an end": lambda: f"Bearer {site().keys.token(exp=None)}",
    "that match no caller": lambda: f"Bearer {site().keys.token(oid=None)}",
    "three dots": lambda: "Bearer a.b.c",
    "a header of brackets": lambda: "Bearer " + "W1tb" * 2000 + ".e30.x",
}


def _without_role(roles: object) -> str:
    return _launch(lambda: f"Bearer {site().keys.token(roles=roles)}", 403)


def _elsewhere(part: str, name: str, text: str) -> str:
    """Send the token in a place that is not supported."""
    fields = {part: {name: text.format(site().tokens["operator"])}}
    return _stopped(site().signed.request("POST", "/v1/runs", json={}, **fields), 401)


# What is asked -----------------------------------------------------------------------------------


def _as(role: str, method: str, path: str, *expected: int, **options: Any) -> str:
    given = {**options, "headers": {**bearer(role), **options.get("headers", {})}}
    response = site().signed.request(method, path, **given)
    assert "root:" not in response.text
    assert response.headers.get("Set-Cookie") is None
    return _stopped(response, *expected)


async def _chunks() -> Any:
    for _ in range(200):
        yield b" " * 1000


_REFUSED: Final = (400, 404, 405, 409, 413, 415, 422)
_PATHS: Final = (
    "/v1/runs/..%2f..%2f..%2fetc%2fpasswd",
    "/v1/runs/%2e%2e/%2e%2e/etc/passwd",
    "/v1/runs/tokens%7Cviewer",
    f"/v1/runs/{'a' * 5000}",
    "/v1/runs/%00",
    "/v1/runs/%0d%0aSet-Cookie:%20a=b",
    f"/v1/runs/{RUN}/raw/..%2f..%2fetc%2fpasswd",
    f"/v1/runs/{RUN}/raw/pair-001?burst=-1",
    f"/v1/runs/{RUN}/raw/pair-001?burst={10**30}",
    f"/v1/runs/{RUN}/bursts/{10**30}",
    f"/v1/runs/{RUN}/charts/..%2f..%2fetc%2fpasswd",
    f"/v1/runs/{RUN}/export?table=..%2f..%2fx",
    "/v1/runs?cursor=" + "A" * 400,
    "/v1/runs?cursor=private%7Ctokens",
    "/v1/audit?cursor=2026-11~private%7Ctokens",
    "/v1/deadletters/-1",
    f"/v1/deadletters/{10**30}",
    "/v1/studies/..%2ftokens",
    "/v1/schedules/..%2ftokens",
    "/web/0/..%2f..%2f..%2fpyproject.toml",
    "/web/0/%2e%2e%2fapp.py",
)


def _overridden(name: str, value: Any) -> tuple[str, Any]:
    return "/v1/runs", {"json": {"scenario": "smoke", "overrides": {name: value}}}


_BODIES: Final[dict[str, tuple[str, Any]]] = {
    "100,000 brackets": ("/v1/runs", {"content": b"[" * 99_000}),
    "a number of 4,999 digits": (
        "/v1/runs",
        {"content": b'{"spec":{"pairs_count":' + b"9" * 4999 + b"}}"},
    ),
    "not a number": ("/v1/runs", {"content": b'{"spec":{"scenario":"x","burst_s":NaN}}'}),
    "half a character": ("/v1/runs", {"content": b'{"scenario":"\\ud800"}'}),
    "a body over the limit": ("/v1/runs", {"content": b" " * (_BODY_MAX_BYTES + 1)}),
    "the same, unannounced": ("/v1/runs", {"content": _chunks}),
    "an import over the limit": ("/v1/imports/original", {"content": b" " * (10**6 + 1)}),
    "a zip in place of a table": ("/v1/imports/original", {"content": b"PK\3\4" + b"\0" * 1000}),
    "a scenario's path": ("/v1/runs", {"json": {"scenario": "../../../etc/passwd"}}),
    "a counter of one's own (SSRF)": _overridden("counter.url", "http://169.254.169.254/"),
    "another's address": _overridden("webhook", "http://10.0.0.1/"),
    "a class's attribute": _overridden("__class__.__init__", 1),
    "a million bursts": _overridden("bursts_count", 10**9),
    "a label of commands": _overridden("labels", {"a\r\nb": {"$ne": 1}}),
    "a comparison with everything": (
        "/v1/comparisons",
        {"json": {"a": {"run_ids": ["x"] * 10_000}, "b": {"run_ids": ["x"]}}},
    ),
    "pruning below zero": ("/v1/prune", {"json": {"older_than_days": -1, "dry_run": False}}),
}
_SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "every second of ever": {"cron": "*/0 * * * * *"},
    "a range of a billion": {"cron": "1-999999999 * * * *"},
    "a thousand letters": {"cron": "0," * 500},
    "a shell": {"cron": "$(reboot) * * * *"},
    "a day that never comes": {"cron": "0 0 31 2 *"},
    "a zone's path": {"cron": "0 2 * * 6", "timezone": "../../../etc/passwd"},
    "a name's path": {"cron": "0 2 * * 6", "name": "../tokens"},
    "a name with a command": {"cron": "0 2 * * 6", "name": "a;reboot"},
}


def _schedule(changes: dict[str, Any]) -> str:
    body = {"name": "hostile", "scenario": "smoke", **changes}
    return _as("operator", "POST", "/v1/schedules", *_REFUSED, json=body)


def _path(path: str) -> str:
    return _as("operator", "GET", path, *_REFUSED)


def _body(path: str, options: dict[str, Any]) -> str:
    given = {key: value() if callable(value) else value for key, value in options.items()}
    if "content" in given:
        given["headers"] = {"Content-Type": "application/json"}
    return _as("operator", "POST", path, *_REFUSED, **given)


# What a browser is made to ask -------------------------------------------------------------------


def _crossed(method: str = "POST", **headers: str) -> str:
    response = site().local.request(method, "/v1/runs", headers=headers, json={})
    assert not [name for name in response.headers if name.startswith("access-control")]
    return _stopped(response, 403)


def _marked(path: str) -> str:
    """Check that a label with a script is safe in all places that render a run."""
    response = site().signed.get(f"/v1/runs/{RUN}{path}", headers=bearer("viewer"))
    assert response.status_code == 200, response.text[:200]
    if "json" not in response.headers["content-type"]:
        assert MARK not in response.text
        assert '"=HYPERLINK' not in response.text
    assert response.headers["cache-control"] != "public"
    return f"escaped, as {response.headers['content-type'].partition(';')[0]}"


def _policy() -> str:
    for path in ("/", "/report.html"):
        headers = site().signed.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    return "Content-Security-Policy: only our own files, and no frames"


_EVIL: Final = "https://evil.example"
# Values are the attempt and the request.
_CROSSED: Final = {
    "another site's page": ("a launch across origins", partial(_crossed, Origin=_EVIL)),
    "a page without origin": ("Origin: null", partial(_crossed, Origin="null")),
    "a name bound to loopback": ("Host: evil.example", partial(_crossed, Host="evil.example")),
    "another port's page": (
        "Origin of a neighbour",
        partial(_crossed, Origin="http://127.0.0.1:9"),
    ),
    "a preflight": ("OPTIONS from elsewhere", partial(_crossed, "OPTIONS", Origin=_EVIL)),
    "a half host": ("Host: [::1", partial(_crossed, Host="[::1")),
}
ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants(
        "anonymous: {}",
        CALLER,
        "without a token",
        partial(_route, dict, 401),
        {
            f"{method} {path}": (method, path)
            for method, path, access in PERMISSIONS
            if access is not Access.OPEN
        },
    ),
    *attack_variants(
        "viewer: {}",
        VIEWER,
        "what operators do",
        partial(_route, partial(bearer, "viewer"), 403),
        {
            f"{method} {path}": (method, path)
            for method, path, access in PERMISSIONS
            if access is Access.OPERATOR
        },
    ),
    *attack_variants("token: {}", CALLER, "a launch", _launch, _HEADERS),
    *attack_variants(
        "roles {}",
        CALLER,
        "a launch without the role",
        _without_role,
        {repr(r): r for r in ([], ["Operator"], "operator", {"operator": 1}, ["operators"])},
    ),
    Attack(
        "token in the address",
        CALLER,
        "?token=...",
        partial(_elsewhere, "params", "token", "{}"),
    ),
    Attack(
        "token in a cookie",
        CALLER,
        "Cookie: token",
        partial(_elsewhere, "headers", "Cookie", "token={}"),
    ),
    Attack(
        "another's method",
        VIEWER,
        "X-HTTP-Method-Override: POST",
        partial(_as, "viewer", "GET", "/v1/audit", 403, headers={"X-HTTP-Method-Override": "POST"}),
    ),
    *attack_variants(
        "middleware: {}",
        VIEWER,
        "around the permission table",
        lambda path: _as("viewer", "POST", path, 403, json={}),
        ("/v1//runs", "/v1/runs/", "/V1/RUNS", "/v1/runs%2f", "/web/../v1/runs", "/x/v1/runs"),
    ),
    *attack_variants(
        "path: {}", CALLER, "a file or another's row", _path, {path[:50]: path for path in _PATHS}
    ),
    *attack_variants("body: {}", CALLER, lambda path, _: path, _body, _BODIES),
    *attack_variants(
        "schedule: {}", CALLER, lambda options: str(options)[:60], _schedule, _SCHEDULES
    ),
    *(Attack(name, BROWSER, tried, ask) for name, (tried, ask) in _CROSSED.items()),
    *attack_variants(
        "script: {}",
        BROWSER,
        MARK,
        _marked,
        ("/report", "/report?format=html", "/export?format=csv&table=pairs", "/verdict"),
    ),
    Attack("in a frame", BROWSER, "clickjacking, scripts from elsewhere", _policy),
)
