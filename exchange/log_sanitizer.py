"""Remove secrets, control characters and CI commands from log lines.

Broadside does not log credentials, but libraries can log them at debug level. Log lines also
contain text from agents, devices and unknown senders.
"""

import logging
import re
import textwrap
from typing import Final

from broadside.exchange.ci_logs import escape_workflow_commands
from broadside.exchange.messages import LINES_MAX_CHARS, plain_lines, plain_text

_SECRETS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Broadside API tokens
        (r"broadside_[A-Za-z0-9_-]{20,}", "broadside_***"),
        # Agent credentials
        (r"\bbsa_[A-Za-z0-9_-]{20,}", "bsa_***"),
        # Join codes
        (r"\bbsj\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+", r"bsj.\1.***"),
        # Webhook keys
        (r"\bwhsec_[A-Za-z0-9+/=_-]+", "whsec_***"),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*", "***jwt***"),
        (r"(?i)\b(bearer|sharedaccesssignature)(\s+)[^\s'\",;]+", r"\1\2***"),
        (r"(?i)\b(SharedAccessKey|AccountKey|SharedAccessSignature)=[^;\s'\"]+", r"\1=***"),
        # Signature in the URL of a shared access signature
        (r"(?i)\b(sig)=[^&\s'\"]+", r"\1=***"),
        # Options of a command, for example of a drill's event
        (r"(?i)(--[\w-]*(?:password|passwd|secret|token|key)=)[^\s'\"]+", r"\1***"),
        # Password in the URL of a proxy or service
        (r"(?i)(://[^/\s:@'\"]*:)[^/\s@'\"]+@", r"\1***@"),
    )
)


def redact(text: str) -> str:
    """Replace everything that looks like a credential with asterisks."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def log_text(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """Format a log record as one line, followed by the indented traceback if any.

    Args:
        record: The log record to format.
        formatter: The formatter to use for the traceback.

    Returns:
        Text without secrets and control characters.
    """
    text = plain_text(record.getMessage(), LINES_MAX_CHARS)
    if record.exc_info:
        raised = plain_lines(formatter.formatException(record.exc_info))
        text += f"\n{textwrap.indent(raised, '  ')}"
    return redact(escape_workflow_commands(text))
