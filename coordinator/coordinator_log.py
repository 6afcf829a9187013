"""The coordinator's log: one line an event on standard error, and never a secret in it."""

import logging
import re
from datetime import UTC, datetime
from typing import Final

CONTEXT: Final = ("action", "run_id")
_SECRETS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"broadside_[A-Za-z0-9_-]{20,}", "broadside_***"),  # our own tokens
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*", "***jwt***"),
        (r"(?i)\b(bearer|sharedaccesssignature)(\s+)[^\s'\",;]+", r"\1\2***"),
        (r"(?i)\b(SharedAccessKey|AccountKey|SharedAccessSignature)=[^;\s'\"]+", r"\1=***"),
        (r"(?i)\b(sig)=[^&\s'\"]+", r"\1=***"),  # of a shared access signature's address
    )
)


def redact(text: str) -> str:
    """The same text with everything that looks like a credential starred out."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class Lines(logging.Formatter):
    """``time level logger action [run]: message``; the last gate that a secret would have to pass.

    Nothing here logs a credential on purpose. Libraries at debug level might.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        words = [f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"]
        words += [record.levelname, record.name]
        words += [str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)]
        text = f"{' '.join(words)}: {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return redact(text)


def start_log(level: str) -> None:
    """Send this process's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
