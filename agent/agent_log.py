"""The agent's log: one line an action on standard error, as text or as JSON.

Every record carries ``action`` (what happened, a fixed word) and, where there is one, ``job_id``;
both come in ``extra`` so that a log store can filter on them.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Final

CONTEXT: Final = ("action", "agent_id", "job_id", "port", "outcome")


def start_log(agent_id: str, *, level: str, as_json: bool) -> None:
    """Send this process's log to standard error. Replaces what a parent process had set up."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(_stamp(agent_id))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _stamp(agent_id: str) -> logging.Filter:
    class Stamp(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.agent_id = agent_id
            return True

    return Stamp()


def context(record: logging.LogRecord) -> dict[str, str]:
    """The fields of :data:`CONTEXT` that a record has, as text."""
    return {key: str(getattr(record, key)) for key in CONTEXT if hasattr(record, key)}


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            **context(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """``time level agent action [job]: message``, to be read by a person."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        words = [f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}Z", record.levelname]
        words += context(record).values()
        line = f"{' '.join(words)}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
