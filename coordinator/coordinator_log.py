"""Coordinator log on standard error, one line per event, with secrets removed."""

import logging
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.log_sanitizer import log_text

CONTEXT: Final = ("action", "run_id")


class Lines(logging.Formatter):
    """Formatter that writes one line and removes secrets.

    The line is ``time level logger action [run]: message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        parts = [f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"]
        parts += [record.levelname, record.name]
        parts += [str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)]
        return f"{' '.join(parts)}: {log_text(record, self)}"


def start_log(level: str) -> None:
    """Write this process's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # At INFO, httpx logs complete URLs. A device URL can contain its key.
    logging.getLogger("httpx").setLevel(logging.WARNING)
