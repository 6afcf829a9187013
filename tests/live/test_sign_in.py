"""Test that all routes reject unauthorized callers with all kinds of invalid credentials."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.auth.entra import Entra, EntraTrust, entra_trust
from broadside.coordinator.auth.permissions import PERMISSIONS
from broadside.coordinator.auth.principal import Access, SignInMisconfigured
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from tests.keyserver import TENANT, KeyServer, key_server

pytestmark = pytest.mark.live

NOW = datetime.now(UTC)
# The files of the live page and the explanations of errors.
PROBLEMS = ("/problems", "/problems/", "/problems/{name}")
DOCS = ("/docs", "/docs/", "/docs/{name}", "/docs/{folder}/{name}")
PAGE = ("/", "/report.html", "/web/{version}/{name}", *DOCS, *PROBLEMS)


@pytest.fixture(scope="module")
def keys() -> Iterator[KeyServer]:
    with key_server() as server:
        yield server


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path / "data"))
    yield fabric
    await fabric.close()


class Api:
    """Application with sign-in and callers of every kind."""

    def __init__(self, fabric: Fabric, settings: SignInSettings, **guard: Any) -> None:
        self.tokens = Tokens(fabric.private)
        trust = entra_trust(settings)
        sign_in = SignIn(self.tokens, None if trust is None else Entra(trust))
        self.app: FastAPI = create_app(
            Coordinator(fabric), tick_s=None, guard=AuthConfig(sign_in=sign_in, **guard)
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, client=("192.0.2.7", 4711)),
            base_url="http://test",
        )

    async def token(self, name: str, role: Access, expires_at: datetime | None = None) -> str:
        return await self.tokens.add(name, role, by="test", now=NOW, expires_at=expires_at)

    async def request(
        self, method: str, path: str, token: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.http.request(
            method, path, headers=headers | more.pop("headers", {}), **more
        )

    def routes(self) -> list[tuple[str, str]]:
        """Return every method and path template in the OpenAPI document of the application."""
        return [
            (method.upper(), path)
            for path, operations in self.app.openapi()["paths"].items()
            for method in operations
            if method != "parameters"
        ]


@asynccontextmanager
async def opened(api: Api) -> AsyncIterator[Api]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(api.http)
        yield api


@pytest.fixture
async def api(fabric: Fabric, keys: KeyServer) -> AsyncIterator[Api]:
    async with opened(Api(fabric, keys.settings())) as api:
        yield api


def concrete(path: str) -> str:
    """Return a path with values for all parameters."""
    parts = [("1" if part.startswith("{") else part) for part in path.split("/")]
    return "/".join(parts)


def needed(method: str, path: str) -> Access:
    results = [
        access for listed, template, access in PERMISSIONS if (listed, template) == (method, path)
    ]
    assert results, f"{method} {path} is not in coordinator/auth/permissions.py"
    return results[0]


def streams(api: Api, method: str, path: str) -> bool:
    answers = api.app.openapi()["paths"][path][method.lower()]["responses"]
    return any("text/event-stream" in answer.get("content", {}) for answer in answers.values())


# These routes are not in the OpenAPI document.
UNLISTED = {("GET", "/openapi.json"), *(("GET", path) for path in PAGE)}


async def test_permission_table_lists_exactly_the_routes(api: Api) -> None:
    listed = {(method, path) for method, path, _ in PERMISSIONS}
    assert listed == set(api.routes()) | UNLISTED
    open_to_all = {path for _, path, access in PERMISSIONS if access is Access.OPEN}
    assert open_to_all == {"/healthz", "/readyz", *PAGE}


async def test_viewers_may_only_read_compare_and_estimate(api: Api) -> None:
    questions = {
        path for method, path, access in PERMISSIONS if method != "GET" and access is Access.VIEWER
    }
    assert questions == {"/v1/comparisons", "/v1/estimate"}


async def test_every_route_rejects_invalid_credentials(api: Api, keys: KeyServer) -> None:
    expired = await api.token("old", Access.OPERATOR, NOW - timedelta(seconds=1))
    revoked = await api.token("gone", Access.OPERATOR)
    await api.tokens.revoke("gone", now=NOW)
    # ``NOW`` may be half an hour old.
    now_s = int(datetime.now(UTC).timestamp())
    bad: dict[str, str | None] = {
        "none": None,
        "unknown token": "broadside_" + "x" * 43,
        "expired token": expired,
        "revoked token": revoked,
        "no token at all": "nonsense",
        "audience": keys.token(aud="api://another"),
        "issuer": keys.token(iss="https://login.microsoftonline.com/other/v2.0"),
        "tenant": keys.token(tid="8f5e2a3c-0000-4000-8000-00000000ffff"),
        "no tenant": keys.token(tid=None),
        "signed by another key": keys.token(key=keys.other_key),
        "unknown key": keys.token(key=keys.other_key, key_id="second"),
        "alg none": keys.unsigned(),
        "HS256 with the public key": keys.confused(),
        "expired": keys.token(exp=now_s - 120),
        "no end": keys.token(exp=None),
        "not yet": keys.token(nbf=now_s + 1800),
        "no begin": keys.token(nbf=None),
    }
    forbidden = {
        "no role": keys.token(roles=None),
        "another role": keys.token(roles=["Operator", "admin"]),
        "roles as text": keys.token(roles="operator"),
    }
    routes = [*api.routes(), ("GET", "/openapi.json"), ("GET", "/v1/nowhere"), ("PUT", "/v1/runs")]
    checked = 0
    for method, path in routes:
        if path in ("/healthz", "/readyz"):
            continue
        for expected, credentials in ((401, bad), (403, forbidden)):
            for why, token in credentials.items():
                answer = await api.request(method, concrete(path), token)
                assert answer.status_code == expected, (method, path, why, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["cache-control"] == "no-store"
                challenge = answer.headers.get("www-authenticate", "")
                assert challenge.startswith("Bearer") == (expected == 401), (method, path, why)
                assert token is None or token not in answer.text
                checked += 1
    assert checked == (len(routes) - 2) * (len(bad) + len(forbidden))


async def test_every_route_requires_its_role(api: Api, keys: KeyServer) -> None:
    viewers = [await api.token("viewer", Access.VIEWER), keys.token(roles=["viewer"])]
    operators = [await api.token("operator", Access.OPERATOR), keys.token()]
    for method, path in api.routes():
        access = needed(method, path)
        for token in viewers:
            if access is Access.OPERATOR or not streams(api, method, path):
                answer = await api.request(method, concrete(path), token)
                refused = answer.status_code == 403
                assert refused == (access is Access.OPERATOR), (method, path, answer.text)
        for token in operators:
            if not streams(api, method, path):
                answer = await api.request(method, concrete(path), token)
                assert answer.status_code not in (401, 403), (method, path, answer.text)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_routes_need_no_token(api: Api, path: str) -> None:
    assert (await api.request("GET", path)).status_code == 200


async def test_rejects_token_of_nested_brackets(api: Api) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 9_000).decode()
    assert (await api.request("GET", "/v1/runs", f"{nested}.e30.eA")).status_code == 401


async def test_rejects_other_authorization_schemes(api: Api) -> None:
    for header in ("Basic b3A6b3A=", "Bearer", "Bearer  ", "bearertoken"):
        answer = await api.request("GET", "/v1/runs", headers={"Authorization": header})
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_unavailable_signing_keys_return_503(fabric: Fabric, keys: KeyServer) -> None:
    trust = entra_trust(keys.settings())
    assert trust is not None
    away: EntraTrust = replace(trust, jwks_url="http://127.0.0.1:9/keys")
    app = Api(fabric, SignInSettings(sign_in="on"))
    guard = AuthConfig(sign_in=SignIn(app.tokens, Entra(away)))
    app.app = create_app(Coordinator(fabric), tick_s=None, guard=guard)
    transport = httpx.ASGITransport(app.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        headers = {"Authorization": f"Bearer {keys.token()}"}
        for _ in range(3):
            answer = await http.get("/v1/runs", headers=headers)
            assert answer.status_code == 503
            assert answer.json()["title"] == "Sign-in unavailable"
        # Entra ID should not be needed to use tokens of Broadside.
        local = await app.token("own", Access.VIEWER)
        answer = await http.get("/v1/runs", headers={"Authorization": f"Bearer {local}"})
        assert answer.status_code == 200
    await app.http.aclose()


async def test_fetches_rotated_key_and_limits_fetches(
    fabric: Fabric,
) -> None:
    with key_server() as keys:
        async with opened(Api(fabric, keys.settings())) as api:
            assert (await api.request("GET", "/v1/runs", keys.token())).status_code == 200
            for number in range(20):
                token = keys.token(key=keys.other_key, key_id=f"made-up-{number}")
                assert (await api.request("GET", "/v1/runs", token)).status_code == 401
            assert keys.fetched_count <= 2


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"entra_tenant_id": TENANT}, "BROADSIDE_ENTRA_AUDIENCE"),
        ({"entra_audience": "api://x"}, "BROADSIDE_ENTRA_TENANT_ID"),
        (
            {
                "entra_tenant_id": TENANT,
                "entra_audience": "api://x",
                "entra_jwks_url": "http://keys.example.org/keys",
            },
            "https",
        ),
    ],
)
def test_rejects_incomplete_entra_settings(settings: dict[str, str], variable: str) -> None:
    with pytest.raises(SignInMisconfigured, match=variable):
        entra_trust(SignInSettings(sign_in="on", **settings))  # type: ignore[arg-type]


async def test_limits_writes_per_caller(fabric: Fabric) -> None:
    async with opened(Api(fabric, SignInSettings(), writes_per_minute=3)) as api:
        one = await api.token("one", Access.OPERATOR)
        two = await api.token("two", Access.OPERATOR)
        answers = [await api.request("POST", "/v1/runs", one, json={}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [422, 422, 422, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert answers[-1].headers["content-type"] == "application/problem+json"
        assert (await api.request("POST", "/v1/runs", two, json={})).status_code == 422
        assert (await api.request("GET", "/v1/runs", one)).status_code == 200


async def test_too_large_body_returns_413(fabric: Fabric) -> None:
    limits = {"request_max_bytes": 2000, "import_max_bytes": 4000}
    async with opened(Api(fabric, SignInSettings(), **limits)) as api:
        token = await api.token("one", Access.OPERATOR)

        async def in_pieces() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100

        kind = {"Content-Type": "application/json"}
        for body in (b"x" * 3000, in_pieces()):
            answer = await api.request("POST", "/v1/runs", token, content=body, headers=kind)
            assert answer.status_code == 413
            assert answer.headers["content-type"] == "application/problem+json"
        path = "/v1/imports/iperf3"
        answer = await api.request("POST", path, token, content=b"x" * 3000, headers=kind)
        assert answer.status_code == 422
        answer = await api.request("POST", path, token, content=b"x" * 5000, headers=kind)
        assert answer.status_code == 413


async def test_audit_records_every_write(api: Api) -> None:
    operator = await api.token("gunner", Access.OPERATOR)
    viewer = await api.token("guest", Access.VIEWER)
    await api.request("POST", "/v1/runs/no-such-run/abort", operator)
    await api.request("POST", "/v1/runs", viewer, json={"scenario": "smoke"})
    # A caller without identity should not be in the audit log.
    await api.request("POST", "/v1/runs", None, json={"scenario": "smoke"})
    # Reads should not be in the audit log.
    await api.request("GET", "/v1/runs", operator)
    await api.request("POST", "/v1/comparisons", operator, json={})
    answer = await api.request("GET", "/v1/audit", operator)
    rows = answer.json()
    shown = [(r["by"], r["role"], r["method"], r["route"], r["status"]) for r in rows]
    assert shown == [
        ("guest", "viewer", "POST", "/v1/runs", 403),
        ("gunner", "operator", "POST", "/v1/runs/{run_id}/abort", 404),
    ]
    assert rows[1]["run_id"] == "no-such-run"
    assert {row["from_address"] for row in rows} == {"192.0.2.7"}


async def test_audit_is_paged(api: Api) -> None:
    operator = await api.token("gunner", Access.OPERATOR)
    for number in range(7):
        await api.request("POST", f"/v1/runs/run-{number}/abort", operator)
    seen: list[str] = []
    path: str | None = "/v1/audit?limit=3"
    pages = 0
    while path is not None:
        answer = await api.request("GET", path, operator)
        seen += [row["run_id"] for row in answer.json()]
        pages += 1
        path = answer.links["next"]["url"] if "next" in answer.links else None
    assert sorted(seen) == [f"run-{number}" for number in range(7)]
    assert pages == 3
    wrong = await api.request("GET", "/v1/audit?cursor=2026-13~nonsense", operator)
    assert wrong.status_code == 422


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example.org"},
        {"Host": "["},
        {"Origin": "http://[", "Host": "127.0.0.1:8080"},
        {"Origin": "https://evil.example.org", "Host": "127.0.0.1:8080"},
        {"Origin": "null", "Host": "127.0.0.1:8080"},
    ],
)
async def test_rejects_cross_site_requests_without_sign_in(
    fabric: Fabric, headers: dict[str, str]
) -> None:
    app = create_app(Coordinator(fabric), tick_s=None, guard=AuthConfig(loopback_only=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        assert (await http.get("/v1/runs")).status_code == 200
        fields = {"Origin": "http://127.0.0.1:8080"}
        assert (await http.get("/v1/runs", headers=fields)).status_code == 200
        assert (await http.get("/v1/runs", headers=headers)).status_code == 403
