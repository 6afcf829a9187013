"""Named run specifications as data files, and how a launch overrides them.

A scenario is one TOML file whose keys are :class:`~coordinator.core.plan.spec.RunSpec`'s. Errors::

    ScenarioError
    ├── UnknownScenario   no such name; says what is near
    └── BadScenario       a field is wrong; says which, its value, and what would be right
"""

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coordinator.core.plan.spec import RunSpec
from coordinator.core.quantities import parse_rate, parse_ratio, parse_size, parse_time
from exchange.messages import TRAFFIC_WORDS

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


def load(name: str, overrides: Mapping[str, Any] | None = None) -> RunSpec:
    """The named scenario, or the file of that path, with ``overrides`` by dotted field name.

    Raises :class:`UnknownScenario`, :class:`BadScenario`.
    """
    path = _path_of(name)
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
    """A specification from plain values. Raises :class:`BadScenario` with one line."""
    merged = json.loads(json.dumps(values, default=str))
    # What a word stands for comes before its fields, however they were given.
    for dotted in sorted(overrides or {}, key=lambda dotted: dotted.count(".")):
        _put(merged, dotted, (overrides or {})[dotted])
    try:
        spec = RunSpec.model_validate(merged)
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
        field = field_of(name.strip())
        overrides[field] = _value(field, text.strip())
    return overrides


def field_of(name: str) -> str:
    """The field that a person's name means, else the name itself: the specification refuses it."""
    return _spellings().get(name, name)


@cache
def _spellings() -> Mapping[str, str]:
    """Every field by its own name, without its unit, and by its last name where one has it."""
    known = fields()
    units = (*_UNITS, "_count")
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
        return message if not field or ":" in message else f"{field}: {message}"
    return f"{field}: {message} (got {fault.get('input')!r})"


def fields() -> list[str]:
    """Every field of a specification by its dotted name."""
    return _fields(RunSpec)


def _fields(model: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, info in model.model_fields.items():
        if hasattr(info.annotation, "model_fields"):
            found += _fields(info.annotation, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def _path_of(name: str) -> Path:
    if name.endswith(".toml"):
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


def _value(field: str, text: str) -> Any:
    """A TOML value; a bare word is a string, as is whatever is said of the device or by label."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if field.partition(".")[0] in _WORDS and "." in field:
        return value if isinstance(value, str) else text
    parse = next((parse for unit, parse in _UNITS.items() if field.endswith(unit)), None)
    if parse is None or not isinstance(value, str) or not value[:1].isdigit():
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise BadScenario(f"{field}: {error}") from error


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


__all__: Sequence[str] = (
    "BadScenario",
    "ScenarioError",
    "UnknownScenario",
    "build",
    "explain",
    "field_of",
    "fields",
    "load",
    "names",
    "parse_overrides",
)
