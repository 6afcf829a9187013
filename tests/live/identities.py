"""Azure identities, tokens and services with role checks on this host.

Azurite accepts every token, so a relay needs to enforce the role assignments that the range's
Terraform creates. They are those of a stored range. The rehearsal compares them with the applied
ones (``tests.azure_emulator.applied``).
"""

import contextlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import jwt

from broadside.lab.azurite import ACCOUNT, Azurite
from broadside.lab.relay import Relay
from broadside.lab.servicebus.access_tokens import issue_jwt
from broadside.lab.tls_listener import by_tls
from tests.azure_emulator.applied import granted, read_fixture, resources_of
from tests.live.http_service import Answer, Asked, serving
from tests.live.started import started
from tests.live.tls_queue import JWT_KEY, tls_queue

# Pairs of a role and the last part of its scope.
Roles = set[tuple[str, str]]

_HEADER: Final = "only this host's processes know it"
_STORAGE: Final = "https://storage.azure.com"
_ISSUER: Final = "https://sts.windows.net/00000000-0000-0000-0000-000000000000/"
_TABLE: Final = re.compile(rf"/{ACCOUNT}/(\w+)")
_READS: Final = frozenset({"GET", "HEAD"})
_UPSTREAM_S: Final = 30.0


def range_roles() -> dict[str, Roles]:
    """Return the roles that the range's Terraform assigns to each identity."""
    return granted(resources_of(read_fixture("other-appliance")))


@dataclass(kw_only=True)
class Identities:
    """Roles of each identity and the addresses of the services.

    Attributes:
        refused: Rejected requests, for example ``clients GET private``.
    """

    roles: dict[str, Roles] = field(default_factory=range_roles)
    refused: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, identity: str) -> dict[str, str]:
        """Return the environment to use for a process on a host with this identity."""
        return {**self.environment, "BROADSIDE_MANAGED_IDENTITY_CLIENT_ID": identity}

    def may(self, identity: str, method: str, table: str) -> bool:
        answer = self.roles.get(identity, set())
        reads = method in _READS and ("Storage Table Data Reader", table) in answer
        return reads or ("Storage Table Data Contributor", table) in answer

    def token(self, identity: str, resource: str) -> str:
        """Return a token in the form that Entra would issue.

        Tokens for the queue contain the roles for the queue.
        """
        if "servicebus" in resource:
            roles = [role for role, scope in self.roles[identity] if scope == "jobs"]
            return issue_jwt(JWT_KEY, now=time.time(), roles=roles)
        now = int(time.time())
        claims = {"aud": _STORAGE, "iss": _ISSUER, "iat": now, "nbf": now, "exp": now + 3600}
        return jwt.encode({**claims, "oid": identity}, JWT_KEY, algorithm="HS256")


class _RoleRelay(Relay):
    """Relay to forward only the table requests that the caller's roles permit."""

    def __init__(self, identities: Identities, azurite: Azurite, chain: Path, key: Path) -> None:
        super().__init__(azurite.port)
        self._identities = identities
        self._server.socket = by_tls(self._server.socket, chain, key)
        self._unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._unverified.check_hostname = False
        self._unverified.verify_mode = ssl.CERT_NONE

    def _ask(self, handler: Any) -> tuple[int, dict[str, str], bytes]:
        body = handler.read_body()
        bearer = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        user = jwt.decode(bearer, options={"verify_signature": False})["oid"]
        for method, table in _requests(handler.command, handler.path, body):
            if not self._identities.may(user, method, table):
                self._identities.refused.append(f"{user} {method} {table}")
                code = "AuthorizationPermissionMismatch"
                fields = {"odata.error": {"code": code, "message": {"value": "not permitted"}}}
                return 403, {"Content-Type": "application/json"}, json.dumps(fields).encode()
        connection = http.client.HTTPSConnection(
            *self._upstream, timeout=_UPSTREAM_S, context=self._unverified
        )
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


def _requests(method: str, path: str, body: bytes) -> list[tuple[str, str]]:
    """Return the method and table of each request. A batch contains several requests."""
    if not path.startswith(f"/{ACCOUNT}/$batch"):
        match = _TABLE.match(path)
        return [(method, match[1] if match else "?")]
    lines = re.findall(r"^(\w+) https?://[^/]+(/\S+) HTTP/1.1", body.decode(), re.MULTILINE)
    return [pair for inner, at in lines for pair in _requests(inner, at, b"")] or [(method, "?")]


def _metadata(identities: Identities, asked: Asked) -> Answer:
    """Answer as the token service of the host."""
    identity, resource = asked.query.get("client_id", [""])[0], asked.query["resource"][0]
    if identity not in identities.roles or asked.headers["X-IDENTITY-HEADER"] != _HEADER:
        return Answer(status=400, body={"statusCode": 400, "message": "no such identity"})
    token = identities.token(identity, resource)
    fields = {"access_token": token, "expires_on": str(int(time.time()) + 3600)}
    return Answer(body=fields | {"resource": resource, "token_type": "Bearer"})


@contextlib.contextmanager
def standing(folder: Path) -> Iterator[Identities]:
    """Run queue, tables and token service until the context ends."""
    identities = Identities()
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(tls_queue(folder, lock_s=10.0))
        certificates = queue.certificates
        tls = (certificates.chain, certificates.key)
        (folder / "azurite").mkdir()
        azurite = stack.enter_context(started(Azurite(folder / "azurite", tls=tls)))
        azurite.create_tables(authority=certificates.authority)
        relay = stack.enter_context(_RoleRelay(identities, azurite, *tls))
        metadata = stack.enter_context(serving(partial(_metadata, identities)))
        identities.environment = {
            **queue.environment,
            "BROADSIDE_TABLES_ENDPOINT": f"https://127.0.0.1:{relay.port}/{ACCOUNT}",
            "BROADSIDE_TABLES_CA_FILE": str(certificates.authority),
            "IDENTITY_ENDPOINT": f"{metadata}/token",
            "IDENTITY_HEADER": _HEADER,
        }
        yield identities
