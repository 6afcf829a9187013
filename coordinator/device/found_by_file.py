"""Discovery of sources by file name, ``<name>_<kind>.py`` with ``open_source``."""

import pkgutil
from collections.abc import Iterable


def source_names(path: Iterable[str], kind: str) -> list[str]:
    """Return the sorted names of all sources of a kind, without importing them.

    Args:
        path: Search path of the package (``__path__``).
        kind: Suffix of the module names, for example ``source`` or ``witness``.
    """
    modules = (module.name for module in pkgutil.iter_modules(path))
    names = (name.removesuffix(f"_{kind}") for name in modules if name.endswith(f"_{kind}"))
    return sorted(name.replace("_", "-") for name in names)


def module_of(package: str, name: str, kind: str) -> str:
    """Return the full name of the module to import for this source.

    Args:
        package: Package that contains the source.
        name: Name of the source, with hyphens.
        kind: Suffix of the module name.
    """
    return f"{package}.{name.replace('-', '_')}_{kind}"
