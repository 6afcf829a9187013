"""Sources that are found by their file's name: ``<name>_source.py`` with an ``open_source``."""

import pkgutil
from collections.abc import Iterable
from typing import Final

_SOURCE: Final = "_source"


def source_names(path: Iterable[str]) -> list[str]:
    """Those in a package's path; none is imported for it."""
    modules = (module.name for module in pkgutil.iter_modules(path))
    return sorted(n.removesuffix(_SOURCE).replace("_", "-") for n in modules if n.endswith(_SOURCE))


def module_of(package: str, name: str) -> str:
    """The module of a source."""
    return f"{package}.{name.replace('-', '_')}{_SOURCE}"
