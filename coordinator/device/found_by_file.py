"""Sources that are found by their file's name: ``<name>_<kind>.py`` with an ``open_source``."""

import pkgutil
from collections.abc import Iterable


def source_names(path: Iterable[str], kind: str) -> list[str]:
    """Those of a kind in a package's path; none is imported for it."""
    modules = (module.name for module in pkgutil.iter_modules(path))
    names = (name.removesuffix(f"_{kind}") for name in modules if name.endswith(f"_{kind}"))
    return sorted(name.replace("_", "-") for name in names)


def module_of(package: str, name: str, kind: str) -> str:
    """The module of a source."""
    return f"{package}.{name.replace('-', '_')}_{kind}"
