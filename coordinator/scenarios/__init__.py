"""Named run specifications as data files, and how a launch overrides them.

A scenario is one TOML file whose keys are
:class:`~broadside.coordinator.core.plan.spec.RunSpec`'s. Errors::

    ScenarioError
    ├── UnknownScenario   no such name; says what is near
    └── BadScenario       a field is wrong; says which, its value, and what would be right
"""

import difflib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.quantities import parse_rate, parse_ratio, parse_size, parse_time
from broadside.exchange.messages import TRAFFIC_WORDS

_HERE = Path(__file__).parent
# How a field's value may be written, by the unit that its name ends with.
_UNITS: Mapping[str, Callable[[str], float]] = {
    "_bits_per_second": parse_rate,
    "_bytes": parse_size,
    "_ratio": parse_ratio,
    "_s": parse_time,
}
_WORDS = ("device", "labels")  # fields of the user's own, whose values are text


class ScenarioError(Exception):
    """A scenario cannot be used; one line for each field that is wrong."""

    def __str__(self) -> str:
        return " | ".join(map(str, self.args))


class UnknownScenario(ScenarioError):
    """There is no scenario of that name."""


class BadScenario(ScenarioError):
    """A field of a scenario is wrong."""


def names() -> list[str]:
    """The scenarios that come with Broadside."""
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def load(name: str, overrides: Mapping[str, Any] | None = None, *, files: bool = True) -> RunSpec:
    """The named scenario, or the file of that path, with ``overrides`` by dotted field name.

    Whoever asks over a network names none of this host's ``files``.
    Raises :class:`UnknownScenario`, :class:`BadScenario`.
    """
    path = _path_of(name, files=files)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadScenario(
            f"{path.name}: not valid TOML: {error}; see `broadside scenarios`"
        ) from error
    except OSError as error:
        raise BadScenario(f"{path}: {error.strerror}; name a readable file") from error
    values.setdefault("scenario", path.stem)
    return build(values, overrides)


def build(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> RunSpec:
    """A specification from plain values, which are read as :func:`read_value` says; overrides go
    by any name that :func:`field_of` knows. Raises :class:`BadScenario` with a line a fault.
    """
    merged = json.loads(json.dumps(values, default=str))
    named: dict[str, str] = {}
    for name in overrides or {}:
        if (other := named.setdefault(field_of(name), name)) != name:
            raise BadScenario(f"{other}, {name}: both are {field_of(name)}; give one of them")
    # What a word stands for comes before its fields, however they were given.
    for dotted in sorted(named, key=lambda dotted: dotted.count(".")):
        _put(merged, dotted, (overrides or {})[named[dotted]])
    try:
        spec = RunSpec.model_validate(_read(merged, ""))
    except ValidationError as error:
        raise BadScenario(*_faults(error)) from error
    if problems := spec.problems():
        raise BadScenario(*problems)
    return spec


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """``["burst=30s", "target=180Gbit"]`` to values by field. Raises :class:`BadScenario`.

    A field may be named without its unit, and by its last name where only one has it; a value may
    carry a unit. What else it is, TOML says; a bare word is a string.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise BadScenario(
                f"--set {assignment!r}: expected FIELD=VALUE, such as traffic.streams_count=8"
            )
        field, value = field_of(name.strip()), _plain(text.strip())
        if _is_text(field) and not isinstance(value, str):
            value = text.strip()
        overrides[field] = read_value(field, value)
    return overrides


def field_of(name: str) -> str:
    """The field that a person's name means, else the name itself: the specification refuses it."""
    return _spellings().get(name, name)


@cache
def _spellings() -> Mapping[str, str]:
    """Every field by its own name, without its unit, and by its last name where one has it."""
    known = fields()
    units = (*_UNITS, "_count", "_usd")
    plain = {field: field.removesuffix(next(filter(field.endswith, units), "")) for field in known}
    last = {field: field.rpartition(".")[2] for field in known}
    plain_last = {field: short.rpartition(".")[2] for field, short in plain.items()}
    meant: dict[str, str] = {}
    for spelt in (plain_last, last, plain):
        times = Counter(spelt.values())
        meant |= {short: field for field, short in spelt.items() if times[short] == 1}
    return meant | {field: field for field in known}


def explain(error: ValidationError) -> str:
    """Every fault of a refused specification in one line: field, value, what would be right."""
    return " | ".join(_faults(error))


def _faults(error: ValidationError) -> list[str]:
    return [_fault(fault) for fault in error.errors(include_url=False)]


def _fault(fault: Any) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, _fields(RunSpec), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see `broadside scenarios smoke`"
        return f"{field}: no such field{hint}"
    if fault["type"] == "value_error":
        # Checks over several fields name the field themselves.
        return message if not field or ": " in message else f"{field}: {message}"
    return f"{field}: {message} (got {fault.get('input')!r})"


def fields() -> list[str]:
    """Every field of a specification by its dotted name."""
    return list(_fields(RunSpec))


@cache
def _fields(model: Any, prefix: str = "") -> Mapping[str, Any]:
    """Its fields and what each is annotated with."""
    found: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if hasattr(info.annotation, "model_fields"):
            found |= _fields(info.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = info.annotation
    return found


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_is_number, get_args(annotation)))


def _path_of(name: str, *, files: bool) -> Path:
    if files and name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UnknownScenario(f"scenario file {name!r}: no such file; check the path")
        return path
    path = _HERE / f"{name}.toml"
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names())}"
        raise UnknownScenario(f"scenario {name!r}: no such scenario; {hint}")
    return path


def read_value(field: str, value: Any) -> Any:
    """A field's value as a person gives it, by whatever way: text where text is meant, and a rate,
    size, time or share with its unit (``180Gbit``, ``30s``). Raises :class:`BadScenario`.
    """
    if _is_text(field):
        is_text = value is None or isinstance(value, str)
        return value if is_text else json.dumps(value)
    parse = next((parse for unit, parse in _UNITS.items() if field.endswith(unit)), None)
    is_number = _is_number(_fields(RunSpec).get(field))
    if is_number and isinstance(value, bool):
        raise BadScenario(f"{field}: {json.dumps(value)} is no number; give one")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadScenario(f"{field}: {value} is no number; give one")
    if not isinstance(value, str) or not (parse or is_number):
        return value
    if (plain := _number(value)) is not None:
        return plain
    if parse is None:
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise BadScenario(f"{field}: {error}") from error


def _plain(text: str) -> Any:
    """What TOML says that a text is; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _number(text: str) -> float | None:
    """A plain finite number that was sent as text."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(text) if text.strip().isdecimal() else number


def _is_text(field: str) -> bool:
    return field.partition(".")[0] in _WORDS and "." in field


def _read(values: Mapping[str, Any], before: str) -> dict[str, Any]:
    return {
        name: _read(value, f"{before}{name}.")
        if isinstance(value, Mapping)
        else read_value(before + name, value)
        for name, value in values.items()
    }


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for place, parent in enumerate(parents):
        inner = values.setdefault(parent, {})
        words = TRAFFIC_WORDS.get(parent, {}) if parents[:place] == ["traffic"] else {}
        usual = [word for word, stands_for in words.items() if stands_for is not None]
        if inner is None or inner in usual:
            inner = values[parent] = {}
        elif not isinstance(inner, dict):
            fix = f"; set traffic.{parent}={' or '.join(usual)}" if usual else "; drop it"
            raise BadScenario(f"{dotted}: {parent} is {inner!r}, with no fields of its own{fix}")
        values = inner
    values[leaf] = value
