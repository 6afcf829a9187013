"""Credential of an agent on any host, and the file that stores it."""

import hashlib
import json
import os
import secrets
import ssl
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import httpx
from pydantic import TypeAdapter

from broadside.exchange.ports import ExchangeMisconfigured
from broadside.exchange.strict_json import parse_strict_json

# Length of a secret. It is random, so we can use SHA-256 and do not need a salt or a slow hash.
SECRET_BYTES: Final = 32
# The maximum number of earlier secrets, one per day. A coordinator can be restored from a backup
# that is up to this many days old.
EARLIER_MAX_COUNT: Final = 60


def new_secret() -> str:
    """Return a new random secret for an agent."""
    return f"bsa_{secrets.token_urlsafe(SECRET_BYTES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCredential:
    """Secret of an agent, with the coordinator that stores the hash of this secret.

    Attributes:
        coordinators: URLs ``https://host:port``, tried in order.
        authority: The coordinator's certificate authority, PEM. None means the authorities of the
            system.
        agent_id: The agent id.
        role: The agent role.
        secret: The current secret.
        issued_s: Time when the secret was created, in epoch seconds.
        earlier: Earlier secrets, newest first. A coordinator that was restored from a backup knows
            only one of these.
        path: The file in which a new secret is stored. None if the credential is not in a file.
    """

    coordinators: tuple[str, ...]
    authority: str | None
    agent_id: str
    role: str
    secret: str
    issued_s: float
    earlier: tuple[str, ...] = ()
    path: Path | None = None

    def save(self, path: Path) -> "AgentCredential":
        """Write the credential to ``path``, readable by the owner only.

        The write is atomic, even if the process dies. The returned copy has ``path`` set.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "path"}
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(unfinished, flags, 0o600), "w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        return replace(self, path=path)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the secret in hex, which the coordinator stores."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def renewed(self) -> "AgentCredential":
        """Return a copy with a new secret."""
        earlier = (self.secret, *self.earlier)[:EARLIER_MAX_COUNT]
        return replace(self, secret=new_secret(), issued_s=time.time(), earlier=earlier)


def load_credential(path: Path) -> AgentCredential | None:
    """Read the credential that :meth:`AgentCredential.save` wrote.

    Returns:
        The credential, or None if the file does not exist.

    Raises:
        ExchangeMisconfigured: The file is unreadable or invalid.
    """
    try:
        text = path.read_text()
        fields = parse_strict_json(text, len(text))
        credential = TypeAdapter(AgentCredential).validate_python({**fields, "path": path})
        coordinator_addresses(",".join(credential.coordinators))
        if credential.authority is not None:
            ssl.PEM_cert_to_DER_cert(credential.authority)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExchangeMisconfigured(f"credential {path}: {error.strerror}") from error
    except (ValueError, TypeError, ExchangeMisconfigured) as error:
        raise ExchangeMisconfigured(
            f"credential {path}: invalid content ({type(error).__name__}); delete it and join again"
        ) from error
    return credential


def coordinator_addresses(text: str) -> tuple[str, ...]:
    """Parse a list of coordinator URLs.

    Args:
        text: URLs such as ``https://a:8443, https://b:8443``.

    Raises:
        ExchangeMisconfigured: The list is empty or a URL is not ``https://host:port``.
    """
    credential = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for address in credential:
        if not _is_https(address):
            raise ExchangeMisconfigured(
                f"BROADSIDE_COORDINATOR={address}: use https://host:port; credentials are never "
                "sent in clear text"
            )
    if not credential:
        raise ExchangeMisconfigured("BROADSIDE_COORDINATOR: empty; write https://host:8443")
    return credential


def _is_https(address: str) -> bool:
    """Return True if the text is an https URL with a host and a valid port."""
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, UnicodeError):
        return False
    named = url.scheme == "https" and url.host != ""
    return named and (url.port is None or 0 < url.port < 65_536)
