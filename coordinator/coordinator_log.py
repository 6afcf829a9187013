"""Coordinator log on standard error, one line per event, with secrets removed."""

import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.log_sanitizer import log_text

CONTEXT: Final = ("action", "run_id", "request_id")


# Id of the request that is being processed, for the log lines that it causes.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


class LineFormatter(logging.Formatter):
    """Formatter that writes one line and removes secrets.

    The line is ``time level logger action [run] [request]: message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        parts = [f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"]
        parts += [record.levelname, record.name]
        parts += [str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)]
        return f"{' '.join(parts)}: {log_text(record, self)}"


def add_request_id(record: logging.LogRecord) -> bool:
    """Add the id of the current request to a log record. It is a filter for a log handler."""
    request_id = REQUEST_ID.get()
    if request_id is not None and not hasattr(record, "request_id"):
        record.request_id = request_id
    return True


def start_log(level: str) -> None:
    """Write this process's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    handler.addFilter(add_request_id)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # At INFO, httpx logs complete URLs. A device URL can contain its key.
    logging.getLogger("httpx").setLevel(logging.WARNING)
