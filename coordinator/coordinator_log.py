"""The coordinator's log: one line an event on standard error, and never a secret in it."""

import logging
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.log_lines import log_text

CONTEXT: Final = ("action", "run_id")


class Lines(logging.Formatter):
    """``time level logger action [run]: message``: the last gate that a secret has to pass."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        words = [f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"]
        words += [record.levelname, record.name]
        words += [str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)]
        return f"{' '.join(words)}: {log_text(record, self)}"


def start_log(level: str) -> None:
    """Send this process's log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It tells every address whole at INFO, and a device's may hold its key
    logging.getLogger("httpx").setLevel(logging.WARNING)
