"""Where the firewall's own byte counts come from: a module a source, chosen by settings.

``<name>_source.py`` with an ``open_source`` is a source of that name; nothing else lists them.
"""

import pkgutil

_SOURCE = "_source"


def source_names() -> list[str]:
    """What ``ledger`` may be set to, beside none; no source is imported for it."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(n.removesuffix(_SOURCE).replace("_", "-") for n in modules if n.endswith(_SOURCE))


def module_of(name: str) -> str:
    """The module of a source."""
    return f"{__name__}.{name.replace('-', '_')}{_SOURCE}"
