"""Text that a pipeline which reads it takes for text; loads nothing."""

import re
from typing import Final

# What a pipeline that reads the output takes for its own commands: of Azure Pipelines and of older
# GitHub runners anywhere, of GitHub at a line's start.
_COMMAND: Final = re.compile(
    r"(#)(?=#(?:vso)?\[)|^(\s*):(?=:[a-z-]+\b.*?::)", re.IGNORECASE | re.MULTILINE
)


def uncommanded(text: str) -> str:
    """The same text, in which no pipeline finds a command: `##vso[...]`, `::error::...`."""
    return _COMMAND.sub(lambda found: (found[2] or "") + ("\\x23" if found[1] else "\\x3a"), text)
