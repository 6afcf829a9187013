"""Removes secrets from the files of a support bundle.

Values of settings, credential files and keys that this host knows are removed in every form in
which they can appear. Text that only looks like a secret is removed too.
"""

import base64
import binascii
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from broadside.exchange.log_sanitizer import redact

MASK: Final = "***"
# Names of variables and fields whose values are secrets.
_SECRET_NAME: Final = re.compile(
    r"(secret|token|password|passwd|passphrase|credential|connection.?string|community"
    r"|private.?key|access.?key|account.?key|api.?key|auth.?key|priv.?key|join|webhook.?url"
    r"|instrumentation.?key)(?!.*(_file|_path|_count|_id|_at|_s)$)",
    re.IGNORECASE,
)
_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# Parts of a connection string, and of a shared access signature.
_PARTS: Final = re.compile(
    r"(?i)(?:AccountKey|SharedAccessKey|SharedAccessSignature|InstrumentationKey|sig|password)"
    r"=([^;&\s'\"]+)"
)
_ASSIGNED: Final = re.compile(
    r"(?i)([\"']?\b[a-z0-9_.-]*(?:secret|token|password|passwd|passphrase|community|privkey|authkey)"
    r"[\"']?\s*[:=]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"'}\]]+)"
)
_PIECE: Final = re.compile(r"[A-Za-z0-9+/=_%.~:;&?@-]{16,}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
# Shorter values cannot be distinguished from ordinary words.
_VALUE_MIN_CHARS: Final = 6
_FILE_MAX_BYTES: Final = 65_536
_FILES_MAX_COUNT: Final = 1000
_DECODINGS_MAX: Final = 2


def is_secret_name(name: str) -> bool:
    """Return True if a variable or field with this name has a secret as value."""
    return _SECRET_NAME.search(name) is not None


def known_secrets(environment: Mapping[str, str], folders: Iterable[Path] = ()) -> set[str]:
    """Return the secrets that this host knows.

    Args:
        environment: Variables of this process and of the services.
        folders: Folders with keys and credentials, such as the data directory.
    """
    values = {value for name, value in environment.items() if is_secret_name(name)}
    for path in _private_files(environment, folders):
        try:
            values |= _values_of_file(path.read_text("utf-8"))
        except (OSError, UnicodeError):
            continue
    values |= {part for value in values for part in _PARTS.findall(value)}
    return {value for value in values if len(value) >= _VALUE_MIN_CHARS}


def _private_files(environment: Mapping[str, str], folders: Iterable[Path]) -> Iterator[Path]:
    """Yield files named by settings, and files that only their owner may read."""
    for name, value in environment.items():
        is_file = name.startswith("BROADSIDE_") and name.endswith(("_FILE", "_KEY"))
        if is_file and Path(value).is_file() and ("KEY" in name or is_secret_name(name[:-5])):
            yield Path(value)
    for folder in folders:
        for number, path in enumerate(folder.rglob("*") if folder.is_dir() else ()):
            if number >= _FILES_MAX_COUNT:
                break
            try:
                state = path.lstat()
            except OSError:
                continue
            is_private = stat.S_ISREG(state.st_mode) and not state.st_mode & 0o077
            if is_private and state.st_size <= _FILE_MAX_BYTES:
                yield path


def _values_of_file(text: str) -> set[str]:
    """Return the secrets in a credential file: JSON fields, a key, or a single line."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return set(_secret_fields(document))
    if "PRIVATE KEY-----" in text:
        return {text.strip(), *(line for line in text.splitlines() if line and line[0] != "-")}
    lines = text.strip().splitlines()
    return set(lines) if len(lines) == 1 and len(lines[0].split()) == 1 else set()


def _secret_fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str) and (is_secret_name(name) or name in ("key", "code")):
                yield inner
            yield from _secret_fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secret_fields(inner)


class Scrubber:
    """Replaces secrets in text, also in base64, URL encoding and JSON escapes.

    Args:
        secrets: Values that this host knows.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        listed = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, listed))) if listed else None

    def scrub(self, text: str) -> str:
        """Return the text without secrets."""
        text = _KEY_BLOCK.sub(MASK, self._plain(text))
        return _PIECE.sub(lambda match: self._part(match[0]), text)

    def scrub_value(self, value: Any) -> Any:
        """Return a JSON value without secrets. Fields with a secret name are masked."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, list):
            return [self.scrub_value(one) for one in value]
        if isinstance(value, dict):
            return {
                self.scrub(str(name)): MASK
                if isinstance(inner, str) and inner and is_secret_name(str(name))
                else self.scrub_value(inner)
                for name, inner in value.items()
            }
        return value

    def _plain(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _ASSIGNED.sub(rf"\1{MASK}", redact(text))

    def _part(self, part: str) -> str:
        return MASK if self._hides_secret(part, _DECODINGS_MAX) else part

    def _hides_secret(self, part: str, depth: int) -> bool:
        for text in _decoded(part):
            if _KEY_BLOCK.search(text) or self._plain(text) != text:
                return True
            if depth > 1 and any(
                self._hides_secret(inner[0], depth - 1) for inner in _PIECE.finditer(text)
            ):
                return True
        return False


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it can appear in text."""
    yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield json.dumps(secret)[1:-1]
    yield secret.encode().hex()
    # Base64 of a text that contains the secret, at each of the three positions in a group.
    for before in range(3):
        body = b"\0" * before + secret.encode()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            first, last = (before * 8 + 5) // 6, len(body) * 8 // 6
            form = encode(body).decode()[first:last]
            if len(form) >= _VALUE_MIN_CHARS:
                yield form


def _decoded(part: str) -> Iterator[str]:
    """Yield the texts that a part encodes."""
    if "%" in part and (plain := unquote(part)) != part:
        yield plain
    for match in _BASE64.finditer(part):
        body = match[0].rstrip("=").translate(str.maketrans("-_", "+/"))
        try:
            text = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
        except (binascii.Error, ValueError):
            continue
        if text.isprintable() or "\n" in text:
            yield text
