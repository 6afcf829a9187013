"""Print the JSON schemas of all messages, and all settings, of the current checkout.

``tests/compat/write.py`` runs this file with the Python of that checkout, independent of the names
of its packages.
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


def subclasses(kind: Any) -> list[Any]:
    below: list[Any] = kind.__subclasses__()
    return below + [subclass for direct in below for subclass in subclasses(direct)]


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
    importlib.import_module(f"{prefix}agent.agent_settings")
    settings = sorted(
        f"{kind.model_config.get('env_prefix', '')}{name}".upper()
        for kind in subclasses(importlib.import_module("pydantic_settings").BaseSettings)
        for name in kind.model_fields
        if kind.__module__.startswith((f"{prefix}agent", f"{prefix}exchange", f"{prefix}coord"))
    )
    json.dump({"messages": schemas, "settings": settings}, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()
