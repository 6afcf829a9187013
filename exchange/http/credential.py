"""What an agent of any host proves itself with, and where it keeps that."""

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

SECRET_BYTES: Final = 32  # random: its SHA-256 needs neither salt nor a slow hash
EARLIER_MAX_COUNT: Final = 60  # secrets that are kept, one a day: of backups up to so old


def new_secret() -> str:
    return f"bsa_{secrets.token_urlsafe(SECRET_BYTES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """An agent's secret, and the coordinator that knows its hash."""

    coordinators: tuple[str, ...]  # https://host:port, tried in turn
    authority: str | None  # PEM of the coordinator's own authority; None: the system's are asked
    agent_id: str
    role: str
    secret: str
    issued_s: float  # epoch s: when the secret was made
    earlier: tuple[str, ...] = ()  # secrets before it, newest first: a restored backup knows those
    path: Path | None = None  # where it is kept, so that a new secret can be

    def save(self, path: Path) -> "Credential":
        """Keep it where its owner alone reads; whole, whenever this process dies."""
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
        """What the coordinator keeps of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def renewed(self) -> "Credential":
        """The same with another secret."""
        earlier = (self.secret, *self.earlier)[:EARLIER_MAX_COUNT]
        return replace(self, secret=new_secret(), issued_s=time.time(), earlier=earlier)


def load_credential(path: Path) -> Credential | None:
    """What :meth:`Credential.save` kept; None: nothing. Raises ``ExchangeMisconfigured``."""
    try:
        fields = json.loads(path.read_text())
        found = TypeAdapter(Credential).validate_python({**fields, "path": path})
        coordinator_addresses(",".join(found.coordinators))
        if found.authority is not None:
            ssl.PEM_cert_to_DER_cert(found.authority)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExchangeMisconfigured(f"credential {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError, ExchangeMisconfigured) as error:
        raise ExchangeMisconfigured(
            f"credential {path}: not one ({type(error).__name__}); remove it and join anew"
        ) from error
    return found


def coordinator_addresses(text: str) -> tuple[str, ...]:
    """``https://a:8443, https://b:8443``. Raises ``ExchangeMisconfigured``."""
    found = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for address in found:
        if not _is_https(address):
            raise ExchangeMisconfigured(
                f"BROADSIDE_COORDINATOR={address}: not https://host:port; credentials never "
                "travel in clear text"
            )
    if not found:
        raise ExchangeMisconfigured("BROADSIDE_COORDINATOR: empty; write https://host:8443")
    return found


def _is_https(address: str) -> bool:
    """Whether it names a host, and a port that there is."""
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, UnicodeError):
        return False
    named = url.scheme == "https" and url.host != ""
    return named and (url.port is None or 0 < url.port < 65_536)
