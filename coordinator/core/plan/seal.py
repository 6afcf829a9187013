"""The seal of a stored plan: SHA-256 over the bytes of its document without the seal itself.

Whoever reads the document hashes what is stored, and not what his own version would write. So a
version with more fields verifies it unchanged.
"""

import hashlib
import json
import re
from typing import Any, Final

_SEAL: Final = re.compile(rb',"seal_sha256":(?:null|"[0-9a-f]{64}")\}\Z')

# Commit 6cca7b45 and before hashed the document without these, where they had these values, but
# stored them. A name that ends with an asterisk stands for all that begin so.
_UNHASHED: Final = (
    (("witnesses",), "[]"),
    (("spec", "raw"), '"failed"'),
    (("spec", "objective", "device_*"), "null"),
)


def document_digest(document: bytes, seal: str | None) -> str:
    """Return what the seal of a stored plan must be, in hexadecimal.

    Args:
        document: The plan as it is stored; its seal is its last member.
        seal: The seal that the plan has. An older version's rule is tried where it is not met.
    """
    content = _SEAL.sub(b"}", document)
    digest = hashlib.sha256(content).hexdigest()
    if seal in (None, digest):
        return digest
    older = _older_content(content)
    if older is not None and hashlib.sha256(older).hexdigest() == seal:
        return seal
    return digest


def with_seal(unsealed: bytes, seal: str | None) -> bytes:
    """Return the document of a plan that was written without its seal, with it at the end."""
    member = "null" if seal is None else f'"{seal}"'
    return unsealed[:-1] + f',"seal_sha256":{member}}}'.encode()


class _Number(str):
    """A number as it is written: another program may write the same value in another way."""

    __slots__ = ()


def _older_content(content: bytes) -> bytes | None:
    """Return what 6cca7b45 hashed of it; None where no version of ours wrote the text."""
    try:
        plan = json.loads(content, parse_float=_Number, parse_int=_Number)
        if _text(plan).encode() != content:
            return None
    except (ValueError, RecursionError):
        return None
    for (*folders, name), unset in _UNHASHED:
        holder = plan
        for folder in folders:
            holder = holder.get(folder) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        for member in [each for each in holder if re.fullmatch(name.replace("*", ".*"), each)]:
            if _text(holder[member]) == unset:
                del holder[member]
    return _text(plan).encode()


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(name)}:{_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
