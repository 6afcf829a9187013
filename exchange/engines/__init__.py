"""Traffic engines, one a module: what each turns a job into, and how its output reads.

:mod:`exchange.engines.port` is the contract. A module of this package that has an ``ENGINE`` is an
engine under the module's name; nothing else lists them.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from exchange.engines.port import EVERY_ENGINE, Engine
from exchange.messages import Traffic


@cache
def engines() -> dict[str, Engine]:
    """Every engine by name, in alphabetical order."""
    found: dict[str, Engine] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        engine = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENGINE", None)
        if isinstance(engine, Engine):
            found[engine.name] = engine
    return found


def find(name: str) -> Engine | None:
    """The engine of that name, or None."""
    return engines().get(name)


def problems(traffic: Traffic) -> Iterator[str]:
    """Everything that its engine cannot do of what is asked, as ``field: problem; fix``."""
    engine = find(traffic.engine)
    if engine is None:
        yield (
            f"traffic.engine: {traffic.engine!r} is none that this Broadside knows; "
            f"set one of {', '.join(engines())}"
        )
        return
    usual = {name: info.get_default() for name, info in Traffic.model_fields.items()}
    usual |= dict(Traffic(engine=engine.name))
    for name, value in traffic:
        if name not in engine.honours | EVERY_ENGINE and value != usual[name]:
            wanted = f"leave it at {_said(usual[name])}" if usual[name] is not None else "drop it"
            takers = [other.name for other in engines().values() if name in other.honours]
            others = f", or use engine {' or '.join(takers)}" if takers else ""
            yield f"traffic.{name}: {engine.name} cannot do {_said(value)}; {wanted}{others}"
    yield from engine.problems(traffic)


def _said(value: object) -> str:
    return str(getattr(value, "value", value))


__all__ = ["Engine", "engines", "find", "problems"]
