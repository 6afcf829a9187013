"""Traffic engines, one module for each engine.

:mod:`broadside.exchange.engines.port` defines the interface. A module of this package that has an
``ENGINE`` constant is an engine, and the name of the module is the name of the engine. There is no
other list of engines.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache

from broadside.exchange.engines.port import EVERY_ENGINE, Engine, Unsupported
from broadside.exchange.messages import Traffic


@cache
def engines() -> dict[str, Engine]:
    """Return all engines by name, in alphabetical order."""
    by_name: dict[str, Engine] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        engine = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENGINE", None)
        if isinstance(engine, Engine):
            by_name[engine.name] = engine
    return by_name


def find(name: str) -> Engine | None:
    """Return the engine with this name, or None if it does not exist."""
    return engines().get(name)


def filled_in(given: object) -> object:
    """Add the defaults of the engine to the fields of a ``Traffic``, where fields are missing.

    Call this function before user input is validated. Any other value is returned unchanged.
    """
    name = given.get("engine") if isinstance(given, Mapping) else None
    engine = find(name) if isinstance(name, str) else None
    return given if engine is None else {**engine.defaults, **given}  # type: ignore[dict-item]


def traffic_of(**fields: object) -> Traffic:
    """Return a ``Traffic`` with the defaults of its engine for missing fields.

    Raises:
        pydantic.ValidationError: A field is invalid.
    """
    return Traffic.model_validate(filled_in(fields))


def measures(traffic: Traffic) -> frozenset[str]:
    """Return the metrics that the engine reports besides bytes, for example ``rtt``.

    The result is empty for an unknown engine.
    """
    engine = find(traffic.engine)
    return frozenset() if engine is None else engine.measures(traffic)


def tls_of(traffic: Traffic) -> str:
    """Return the TLS version and cipher suite that a server port must enforce for the traffic.

    An empty string if any is allowed or the engine is unknown.
    """
    engine = find(traffic.engine)
    return "" if engine is None else engine.tls_of(traffic)


def offered_bits_per_second(traffic: Traffic) -> int | None:
    """Return the requested payload rate of a pair, all flows.

    Returns:
        The rate in bit/s. None if the rate is not limited or the engine is unknown.
    """
    engine = find(traffic.engine)
    return None if engine is None else engine.offered_bits_per_second(traffic)


def ramps_s(traffic: Traffic) -> tuple[int, int]:
    """Return the seconds of ramp-up and ramp-down of a burst, which are not judged."""
    engine = find(traffic.engine)
    return (0, 0) if engine is None else engine.ramps_s(traffic)


def pauses(traffic: Traffic) -> bool:
    """Return True if seconds without payload, or with less, are part of the traffic."""
    engine = find(traffic.engine)
    return engine is not None and engine.pauses(traffic)


def scaled(traffic: Traffic, scale: float) -> Traffic:
    """Return the same traffic with its rate limits divided by ``scale``.

    Args:
        traffic: The traffic. It will be returned unchanged if the engine is unknown.
        scale: The scale of a lab, by which the rate limits are divided.
    """
    engine = find(traffic.engine)
    return traffic if engine is None else engine.scaled(traffic, scale)


def problems(traffic: Traffic) -> tuple[str, ...]:
    """Return the settings that the engine does not support.

    Each of them is an error text ``field: problem; fix``.
    """
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
        if name not in engine.supported_fields | EVERY_ENGINE and value != usual[name]:
            wanted = f"leave it at {_shown(usual[name])}" if usual[name] is not None else "drop it"
            takers = [other.name for other in engines().values() if name in other.supported_fields]
            others = f", or use engine {' or '.join(takers)}" if takers else ""
            yield (
                f"traffic.{name}: engine {engine.name} does not support {name} {_shown(value)}; "
                f"{wanted}{others}"
            )
    try:
        yield from engine.problems(traffic)
    except Unsupported as wrong_option:
        yield str(wrong_option)


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))
