"""Print the JSON schema of every message of the checkout in which this runs.

``tests/compat/write.py`` runs it with that checkout's Python, whatever its packages are called.
"""

import importlib
import json
import pkgutil
import sys
from typing import Any

PACKAGES = ("exchange", "coordinator")


def import_all(name: str) -> None:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def subclasses(kind: type) -> list[Any]:
    found: list[Any] = []
    for each in kind.__subclasses__():
        found += [each, *subclasses(each)]
    return found


def main() -> None:
    try:
        prefix = "broadside."
        importlib.import_module("broadside.exchange.messages")
    except ImportError:
        prefix = ""
    for package in PACKAGES:
        import_all(prefix + package)
    message = importlib.import_module(f"{prefix}exchange.messages").Message
    schemas = {
        f"{kind.__module__.removeprefix(prefix)}.{kind.__qualname__}": kind.model_json_schema()
        for kind in subclasses(message)
        if not kind.__qualname__.startswith("_")
    }
    json.dump(schemas, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()
