"""Who says how the device fares: a module a source, chosen by a file of witnesses.

``<name>_witness.py`` with an ``open_source`` is a source of that name; nothing else lists them.
"""

from broadside.coordinator.device import found_by_file


def source_names() -> list[str]:
    """What a witness's ``source`` may be; none is imported for it."""
    return found_by_file.source_names(__path__, "witness")


def module_of(name: str) -> str:
    """The module of a source."""
    return found_by_file.module_of(__name__, name, "witness")
