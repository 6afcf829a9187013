"""Sources of device telemetry, one module per source, selected by the witnesses file.

A module ``<name>_witness.py`` with ``open_source`` is a source of that name. There is no other
list.
"""

from broadside.coordinator.device import found_by_file


def source_names() -> list[str]:
    """Return the valid values of ``source`` without importing them."""
    return found_by_file.source_names(__path__, "witness")


def module_of(name: str) -> str:
    """Return the name of the module to import for this source."""
    return found_by_file.module_of(__name__, name, "witness")
