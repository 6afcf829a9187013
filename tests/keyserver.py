"""Local Entra ID with RSA keys, signed tokens and a key set over HTTP."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from broadside.coordinator.auth.signin_settings import SignInSettings
from tests.loopback_server import answering

TENANT: Final = "8f5e2a3c-0000-4000-8000-000000000001"
AUDIENCE: Final = "api://broadside-test"
KEY_ID: Final = "first"


class KeyServer:
    """Signer of tokens like Entra ID. ``fetched_count`` counts the reads of the key set."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.published = {KEY_ID: self.key}
        self.fetched_count = 0
        self.url = ""

    @property
    def issuer(self) -> str:
        return f"https://login.microsoftonline.com/{TENANT}/v2.0"

    def settings(self) -> SignInSettings:
        return SignInSettings(
            sign_in="on",
            entra_tenant_id=TENANT,
            entra_audience=AUDIENCE,
            entra_jwks_url=self.url,
        )

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a valid operator token. A value of None removes a claim."""
        now_s = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "tid": TENANT,
            "iat": now_s,
            "nbf": now_s - 5,
            "exp": now_s + 600,
            "oid": "5b1c0de5-0000-4000-8000-000000000002",
            "preferred_username": "gunner@example.org",
            "roles": ["operator"],
        } | changes
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, *, key: rsa.RSAPrivateKey | None = None, key_id: str = KEY_ID, **changes: Any
    ) -> str:
        headers = {"kid": key_id}
        return jwt.encode(self.claims(**changes), key or self.key, "RS256", headers=headers)

    def unsigned(self) -> str:
        """Return a token with ``alg: none``."""
        return jwt.encode(self.claims(), "", "none", headers={"kid": KEY_ID})

    def confused(self) -> str:
        """Return a token signed by HMAC with the public key as its secret (algorithm confusion)."""
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        head = {"alg": "HS256", "typ": "JWT", "kid": KEY_ID}
        signed = b".".join(_segment(json.dumps(part).encode()) for part in (head, self.claims()))
        mac = hmac.new(public, signed, hashlib.sha256).digest()
        return (signed + b"." + _segment(mac)).decode()

    def key_set(self) -> bytes:
        keys = [
            json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
            | {"kid": key_id, "use": "sig", "alg": "RS256"}
            for key_id, key in self.published.items()
        ]
        return json.dumps({"keys": keys}).encode()


def _segment(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@contextmanager
def key_server() -> Iterator[KeyServer]:
    """Serve the keys on loopback."""
    keys = KeyServer()

    def response() -> Iterator[bytes]:
        keys.fetched_count += 1
        yield keys.key_set()

    with answering(response, {}) as url:
        keys.url = f"{url}/keys"
        yield keys
