"""Sources of the firewall's byte counters, one module per source, selected by settings.

A module ``<name>_source.py`` with ``open_source`` is a source of that name. There is no other list.
"""

from broadside.coordinator.device import found_by_file


def source_names() -> list[str]:
    """Return the valid values of ``ledger`` except ``none``, without importing a source."""
    return found_by_file.source_names(__path__, "source")


def module_of(name: str) -> str:
    """Return the name of the module to import for this source."""
    return found_by_file.module_of(__name__, name, "source")
