"""Where the firewall's own byte counts come from: a module a source, chosen by settings.

``<name>_source.py`` with an ``open_source`` is a source of that name; nothing else lists them.
"""

from broadside.coordinator.device import found_by_file


def source_names() -> list[str]:
    """What ``ledger`` may be set to, beside none; no source is imported for it."""
    return found_by_file.source_names(__path__, "source")


def module_of(name: str) -> str:
    """The module of a source."""
    return found_by_file.module_of(__name__, name, "source")
