"""Escape CI workflow commands in text. This module imports no other module of ours."""

import re
from typing import Final

# Workflow commands of CI systems. Azure Pipelines and older GitHub runners accept them anywhere in
# a line. Current GitHub runners accept them only at the start.
_COMMAND: Final = re.compile(
    r"(#)(?=#(?:vso)?\[)|^(\s*):(?=:[a-z-]+\b.*?::)", re.IGNORECASE | re.MULTILINE
)


def escape_workflow_commands(text: str) -> str:
    """Escape workflow commands such as `##vso[...]` and `::error::...`."""
    return _COMMAND.sub(
        lambda result: (result[2] or "") + ("\\x23" if result[1] else "\\x3a"), text
    )
