"""What a log line may hold: no secret, nothing that a terminal or a pipeline acts on, no second
line's beginning.

Nothing logs a credential on purpose; libraries at debug level might. Agents, strangers and devices
choose words that are logged.
"""

import logging
import re
import textwrap
from typing import Final

from broadside.exchange.messages import LINES_MAX_CHARS, plain_lines, plain_text
from broadside.exchange.pipelines import uncommanded

_SECRETS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"broadside_[A-Za-z0-9_-]{20,}", "broadside_***"),  # our own tokens
        (r"\bbsa_[A-Za-z0-9_-]{20,}", "bsa_***"),  # agents' credentials
        (r"\bbsj\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+", r"bsj.\1.***"),  # join codes
        (r"\bwhsec_[A-Za-z0-9+/=_-]+", "whsec_***"),  # a webhook's key
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*", "***jwt***"),
        (r"(?i)\b(bearer|sharedaccesssignature)(\s+)[^\s'\",;]+", r"\1\2***"),
        (r"(?i)\b(SharedAccessKey|AccountKey|SharedAccessSignature)=[^;\s'\"]+", r"\1=***"),
        (r"(?i)\b(sig)=[^&\s'\"]+", r"\1=***"),  # of a shared access signature's address
        (r"(?i)(://[^/\s:@'\"]*:)[^/\s@'\"]+@", r"\1***@"),  # of a proxy's, a service's address
    )
)


def redact(text: str) -> str:
    """The same text with everything that looks like a credential starred out."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def log_text(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """A record's message on one line; below it, indented, what was raised."""
    text = plain_text(record.getMessage(), LINES_MAX_CHARS)
    if record.exc_info:
        raised = plain_lines(formatter.formatException(record.exc_info))
        text += f"\n{textwrap.indent(raised, '  ')}"
    return redact(uncommanded(text))
