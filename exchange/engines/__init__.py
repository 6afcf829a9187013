"""Traffic engines, one a module: what each turns a job into, and how its output reads.

:mod:`broadside.exchange.engines.port` is the contract. A module of this package that has an
``ENGINE`` is an engine under the module's name; nothing else lists them.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache

from broadside.exchange.engines.port import EVERY_ENGINE, Engine, Unsupported
from broadside.exchange.messages import Traffic


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


def filled_in(given: object) -> object:
    """Fields of a Traffic with those that are left out as its engine has them; anything else as it
    is. Whoever reads what a person wrote does this first."""
    name = given.get("engine") if isinstance(given, Mapping) else None
    engine = find(name) if isinstance(name, str) else None
    return given if engine is None else {**engine.defaults, **given}  # type: ignore[dict-item]


def traffic_of(**fields: object) -> Traffic:
    """A Traffic; what is left out is as its engine has it. Raises pydantic's ValidationError."""
    return Traffic.model_validate(filled_in(fields))


def measures(traffic: Traffic) -> frozenset[str]:
    """What its engine tells beside bytes: rtt, retransmits, loss, success, latency."""
    engine = find(traffic.engine)
    return frozenset() if engine is None else engine.measures(traffic)


def offered_bits_per_second(traffic: Traffic) -> int | None:
    """Payload asked of one pair, all flows; None: as fast as it goes, or unknown."""
    engine = find(traffic.engine)
    return None if engine is None else engine.offered_bits_per_second(traffic)


def scaled(traffic: Traffic, scale: float) -> Traffic:
    """The same with its paced rates divided by ``scale``."""
    engine = find(traffic.engine)
    return traffic if engine is None else engine.scaled(traffic, scale)


def problems(traffic: Traffic) -> tuple[str, ...]:
    """What its engine cannot do of what is asked, each as ``field: problem; fix``."""
    return tuple(_problems(traffic))


def _problems(traffic: Traffic) -> Iterator[str]:
    engine = find(traffic.engine)
    if engine is None:
        yield (
            f"traffic.engine: {traffic.engine!r} is none that this Broadside knows; "
            f"set one of {', '.join(engines())}"
        )
        return
    usual = {name: info.get_default() for name, info in Traffic.model_fields.items()}
    usual |= dict(traffic_of(engine=engine.name))
    for name, value in traffic:
        if name not in engine.honours | EVERY_ENGINE and value != usual[name]:
            wanted = f"leave it at {_said(usual[name])}" if usual[name] is not None else "drop it"
            takers = [other.name for other in engines().values() if name in other.honours]
            others = f", or use engine {' or '.join(takers)}" if takers else ""
            yield (
                f"traffic.{name}: engine {engine.name} does not support {name} {_said(value)}; "
                f"{wanted}{others}"
            )
    try:
        yield from engine.problems(traffic)
    except Unsupported as wrong_option:
        yield str(wrong_option)


def _said(value: object) -> str:
    return str(getattr(value, "value", value))


__all__ = [
    "Engine",
    "engines",
    "filled_in",
    "find",
    "measures",
    "offered_bits_per_second",
    "problems",
    "scaled",
    "traffic_of",
]
