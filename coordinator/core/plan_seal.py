"""Seal of a stored plan, which is the SHA-256 of the document without the seal.

The digest is computed from the stored bytes, and not from the fields that this version would write.
A version with more fields can therefore verify the plan unchanged.
"""

import hashlib
import json
import re
from typing import Any, Final

_SEAL: Final = re.compile(rb',"seal_sha256":(?:null|"[0-9a-f]{64}")\}\Z')

# Commit 6cca7b45 and earlier versions stored these fields with these values, but did not include
# them in the digest. The asterisk matches any end of a name.
_UNHASHED: Final = (
    (("witnesses",), "[]"),
    (("spec", "raw"), '"failed"'),
    (("spec", "objective", "device_*"), "null"),
)


def document_digest(document: bytes, seal: str | None) -> str:
    """Return the expected seal of a stored plan in hexadecimal.

    Args:
        document: The plan as stored, with the seal as its last member.
        seal: The seal of the plan. If it does not match, the rule of an older version is used. None
            uses the current rule.
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
    """Add the seal to the document of a plan, as its last member.

    Args:
        unsealed: The document without a seal.
        seal: The seal in hexadecimal, or None.

    Returns:
        The document as JSON in UTF-8. Without a seal, the member is ``null``.
    """
    member = "null" if seal is None else f'"{seal}"'
    return unsealed[:-1] + f',"seal_sha256":{member}}}'.encode()


class _Number(str):
    """A number in the original notation, because other programs can write it in a different way."""

    __slots__ = ()


def _older_content(content: bytes) -> bytes | None:
    """Return the content that 6cca7b45 used for the digest, or None for a foreign format."""
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
        for member in [item for item in holder if re.fullmatch(name.replace("*", ".*"), item)]:
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
