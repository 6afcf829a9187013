"""Storage API for a deployment: bearer tokens, roles and the account's firewall.

It has blobs, the rows that the VMs wrote, and their serial consoles.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.azure_emulator.azure_catalogue import DEPLOYER
from tests.azure_emulator.azure_refusals import Refused, Resource
from tests.azure_emulator.booted import CONSOLES, ServiceOutages, console, rows
from tests.azure_emulator.subscription import Answer, Subscription

# Source address of the emulator's clients.
OPERATOR_ADDRESS: Final = "203.0.113.7"
_HEAD: Final = {
    "x-ms-blob-type": "BlockBlob", "ETag": '"1"', "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT",
    "Content-Type": "application/gzip", "x-ms-access-tier": "Hot", "x-ms-server-encrypted": "true",
    "x-ms-creation-time": "Sun, 22 Nov 2026 00:00:00 GMT",
}  # fmt: skip


@dataclass(kw_only=True)
class DataPlane:
    """Blobs of all accounts of a subscription.

    Attributes:
        blobs: Content by host and path.
    """

    subscription: Subscription
    blobs: dict[str, bytes] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    troubles: ServiceOutages = field(default_factory=ServiceOutages)
    uploads_refused: bool = False

    def answer(
        self, method: str, host: str, path: str, query: Mapping[str, list[str]],
        headers: Mapping[str, str], body: bytes,
    ) -> tuple[Answer, bytes]:  # fmt: skip
        """Answer one request to ``<account>.<service>.core.windows.net`` or to the serial consoles.

        Raises:
            Refused: Azure would reject the request.
        """
        if host == CONSOLES:
            return Answer(status=200), console(
                self.subscription.store, self.blobs, self.troubles, path
            )
        account, service = host.split(".")[:2]
        result = next(
            (
                item for item in self.subscription.store.values()
                if item["type"].lower().endswith("/storageaccounts") and item["name"] == account
            ),
            None,
        )  # fmt: skip
        if result is None:
            raise Refused(404, "AccountNotFound", host)
        self._let_in(result, service, path, headers.get("Authorization", ""))
        if service == "table" and method == "GET" and path.endswith("()"):
            result_rows = rows(self.subscription.store, self.blobs, self.troubles)
            return Answer(status=200, headers={"Content-Type": "application/json"}), json.dumps(
                {"value": result_rows}
            ).encode()
        if self.uploads_refused and method == "PUT":
            raise Refused(403, "AuthorizationPermissionMismatch", "uploads are refused")
        if service != "blob":
            raise Refused(
                403, "AuthorizationPermissionMismatch", f"{service}: no deployer's business"
            )
        return self._blob(method, f"{account}{path}", query, headers, body)

    def forget(self, account: str) -> None:
        for key in [blob for blob in self.blobs if blob.startswith(account + "/")]:
            del self.blobs[key]

    def _let_in(self, account: Resource, service: str, path: str, authorization: str) -> None:
        reported = account["properties"]
        rules = reported.get("networkAcls") or {}
        allowed = [item["value"] for item in rules.get("ipRules") or ()]
        if reported.get("publicNetworkAccess") == "Disabled" or (
            rules.get("defaultAction") == "Deny" and OPERATOR_ADDRESS not in allowed
        ):
            raise Refused(403, "AuthorizationFailure", "this address is not let in")
        if not authorization.startswith("Bearer"):
            if reported.get("allowSharedKeyAccess") is False:
                raise Refused(403, "KeyBasedAuthenticationNotPermitted", account["name"])
            return
        kind = f"Storage {service.title()} Data"
        scope = account["id"]
        if service == "blob":
            scope += f"/blobServices/default/containers/{path.split('/')[1]}"
        if service == "table":
            scope += f"/tableServices/default/tables/{path.strip('/()')}"
        if not self.subscription.may(DEPLOYER, kind, scope):
            raise Refused(403, "AuthorizationPermissionMismatch", f"{kind} on {scope}")

    def _blob(
        self, method: str, key: str, query: Mapping[str, list[str]], headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[Answer, bytes]:  # fmt: skip
        part = (query.get("comp") or [""])[0]
        if method == "PUT":
            match part:
                case "block":
                    self.blobs[f"{key}#{query['blockid'][0]}"] = body
                case "blocklist":
                    order = re.findall(r"<(?:Latest|Uncommitted|Committed)>([^<]+)<", body.decode())
                    self.blobs[key] = b"".join(self.blobs.pop(f"{key}#{item}") for item in order)
                    self.digests[key] = headers.get("x-ms-blob-content-md5") or ""
                case "":
                    self.blobs[key] = body
                    self.digests[key] = base64.b64encode(_md5(body)).decode()
                # Azure clears properties that the request omits.
                case "properties":
                    self.digests[key] = headers.get("x-ms-blob-content-md5") or ""
            status = 200 if part in ("properties", "metadata", "tier") else 201
            stored = {name: _HEAD[name] for name in ("ETag", "Last-Modified")}
            return Answer(status=status, headers=stored), b""
        if key not in self.blobs:
            raise Refused(404, "BlobNotFound", key)
        if method == "DELETE":
            del self.blobs[key]
            return Answer(status=202), b""
        digest = {"Content-MD5": self.digests[key]} if self.digests.get(key) else {}
        return Answer(status=200, headers={**_HEAD, **digest}), self.blobs[key]


def _md5(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()
