"""Named run specifications in TOML files, with overrides for a launch.

The keys in a file are the fields of :class:`~broadside.coordinator.core.run_spec.RunSpec`.
Errors::

    ScenarioError
    ├── UnknownScenario   the name is unknown; the message suggests a similar one
    └── BadScenario       a field is invalid; the message has its value and the fix
"""

import difflib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from broadside.coordinator.core.quantities import parse_rate, parse_ratio, parse_size, parse_time
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.engines import engines
from broadside.exchange.messages import TRAFFIC_WORDS

_HERE = Path(__file__).parent
# Parser for a value with a unit, by the last part of the field name.
_UNITS: Mapping[str, Callable[[str], float]] = {
    "_bits_per_second": parse_rate,
    "_bytes": parse_size,
    "_ratio": parse_ratio,
    "_s": parse_time,
}
# Fields with names that are set by the user, and with text as values.
_WORDS = ("device", "labels")


class ScenarioError(Exception):
    """A scenario cannot be used; one line for each field that is wrong."""

    def __str__(self) -> str:
        return " | ".join(map(str, self.args))


class ScenarioNotFound(ScenarioError):
    """There is no scenario of that name."""


class BadScenario(ScenarioError):
    """A field of a scenario is wrong."""


def names() -> list[str]:
    """Return the names of the scenarios that are included in Broadside."""
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def load(name: str, overrides: Mapping[str, Any] | None = None, *, files: bool = True) -> RunSpec:
    """Load a scenario.

    Args:
        name: Name of a scenario, or path of a TOML file.
        overrides: Values by dotted field name. None changes none.
        files: False to reject paths. It needs to be False for requests from the network.

    Returns:
        The complete and valid specification.

    Raises:
        ScenarioNotFound: There is no such scenario or file.
        BadScenario: A field is invalid.
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
    """Build a specification from plain values.

    Args:
        values: Values by field, in the format of :func:`read_value`.
        overrides: Values by any field name that is supported by :func:`field_of`. None changes
            none.

    Returns:
        The complete and valid specification.

    Raises:
        BadScenario: A value is invalid. The error has one line for each problem.
    """
    merged = json.loads(json.dumps(values, default=str))
    named: dict[str, str] = {}
    for name in overrides or {}:
        if (other := named.setdefault(field_of(name), name)) != name:
            raise BadScenario(f"{other}, {name}: both are {field_of(name)}; give one of them")
    # Set a value for a whole object first, and then single fields, in whatever order they were
    # given.
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
    """Parse assignments such as ``["burst=30s", "target=180Gbit"]`` to values by field.

    The name can be given without the unit, or using only the last part if it is unique. A value can
    have a unit. Other values are parsed as TOML, and a single word is a string.

    Raises:
        BadScenario: An assignment is invalid.
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
    """Return the full name of a field, or the name itself if it is unknown.

    An unknown name will be rejected by the specification.
    """
    return _spellings().get(name, name)


@cache
def _spellings() -> Mapping[str, str]:
    """Return all names of the fields, in full, without unit, and the last part if it is unique."""
    known = fields()
    units = (*_UNITS, "_count", "_usd")
    plain = {field: field.removesuffix(next(filter(field.endswith, units), "")) for field in known}
    last = {field: field.rpartition(".")[2] for field in known}
    plain_last = {field: short.rpartition(".")[2] for field, short in plain.items()}
    full_names: dict[str, str] = {}
    for spelt in (plain_last, last, plain):
        times = Counter(spelt.values())
        full_names |= {short: field for field, short in spelt.items() if times[short] == 1}
    return full_names | {field: field for field in known}


def explain(error: ValidationError) -> str:
    """Return one line with all problems of an invalid specification."""
    return " | ".join(_faults(error))


def _faults(error: ValidationError) -> list[str]:
    return [_fault(fault) for fault in error.errors(include_url=False)]


def _fault(fault: Any) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        matches = difflib.get_close_matches(field, _fields(RunSpec), n=1)
        hint = f"; did you mean {matches[0]}?" if matches else "; see `broadside scenarios smoke`"
        return f"{field}: no such field{hint}"
    if fault["type"] == "value_error":
        # For checks on several fields, the message already contains the field names.
        return message if not field or ": " in message else f"{field}: {message}"
    return f"{field}: {message} (got {fault.get('input')!r})"


def fields() -> list[str]:
    """Return the dotted names of all fields in a specification."""
    return list(_fields(RunSpec))


@cache
def _fields(model: Any, prefix: str = "") -> Mapping[str, Any]:
    """Return the annotation of each field by dotted name."""
    annotations: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if hasattr(info.annotation, "model_fields"):
            annotations |= _fields(info.annotation, f"{prefix}{name}.")
        else:
            annotations[prefix + name] = info.annotation
    return annotations


def settable_fields() -> list[str]:
    """Return the dotted names of all fields, with those of objects that are not set."""
    names = []
    for name, annotation in _fields(RunSpec).items():
        names.append(name)
        for member in get_args(annotation):
            if hasattr(member, "model_fields"):
                names += _fields(member, f"{name}.")
    return names


def known_values(field: str) -> list[str]:
    """Return the values of a field with a fixed set of values. Empty for other fields.

    Args:
        field: A name that is supported by :func:`field_of`.
    """
    field = field_of(field)
    if field == "scenario":
        return names()
    if field == "traffic.engine":
        return list(engines())
    owner, _, name = field.rpartition(".")
    aliases = TRAFFIC_WORDS.get(name, {}) if owner == "traffic" else {}
    return [*aliases, *_values_of(_fields(RunSpec).get(field))]


def _values_of(annotation: Any) -> list[str]:
    """Return the values of a flag, an enumeration or a literal, which can be optional."""
    if annotation is bool:
        return ["true", "false"]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    values = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(value) for value in values]
    return [text for value in values for text in _values_of(value)]


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_is_number, get_args(annotation)))


def _path_of(name: str, *, files: bool) -> Path:
    if files and name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ScenarioNotFound(f"scenario file {name!r}: no such file; check the path")
        return path
    path = _HERE / f"{name}.toml"
    if name not in names():
        matches = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {matches[0]!r}?" if matches else f"there are: {', '.join(names())}"
        raise ScenarioNotFound(f"scenario {name!r}: no such scenario; {hint}")
    return path


def read_value(field: str, value: Any) -> Any:
    """Convert a value from user input to the type of a field.

    A rate, size, time or ratio can have a unit (``180Gbit``, ``30s``). For text fields, other
    values are converted to text.

    Args:
        field: Dotted name of the field.
        value: The value to convert.

    Returns:
        A value that JSON can contain, in the base unit of the field.

    Raises:
        BadScenario: The value is invalid.
    """
    if _is_text(field):
        is_text = value is None or isinstance(value, str)
        return value if is_text else json.dumps(value, ensure_ascii=False)
    parse = next((parse for unit, parse in _UNITS.items() if field.endswith(unit)), None)
    is_number = _is_number(_fields(RunSpec).get(field))
    if is_number and isinstance(value, bool):
        raise BadScenario(f"{field}: {json.dumps(value)} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadScenario(f"{field}: {value} is not a number")
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
    """Parse a text as a TOML value. A single word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _number(text: str) -> float | None:
    """Return a finite number from text, or None."""
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
        shorthands = TRAFFIC_WORDS.get(parent, {}) if parents[:place] == ["traffic"] else {}
        usual = [shorthand for shorthand, values_of in shorthands.items() if values_of is not None]
        if inner is None or inner in usual:
            inner = values[parent] = {}
        elif not isinstance(inner, dict):
            fix = f"; set traffic.{parent}={' or '.join(usual)}" if usual else "; drop it"
            raise BadScenario(f"{dotted}: {parent} is {inner!r}, with no fields of its own{fix}")
        values = inner
    values[leaf] = value
