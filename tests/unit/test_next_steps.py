"""Test that next steps name only commands, options, settings and fields that exist."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import COMMANDS
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import PairSummary
from broadside.coordinator.device.telemetry import SOURCES
from broadside.coordinator.device.telemetry.source import _Fields
from broadside.coordinator.imports.column_profile import ColumnProfile
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.exchange.engines import connections
from tests.docs_build.reference_pages import CLASSES

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("core", "imports", "runs")
# Text in backticks of a command, an option, a setting or a field.
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
SETTING = re.compile(r"BROADSIDE_[A-Z_]*[A-Z]")
FIELD = re.compile(r"[a-z]\w*(\.[a-z]\w*)*(=.*)?")
# Programs of others, with the options that texts name.
FOREIGN_COMMANDS = {"chronyc tracking", "chronyc sources", "make setup", "ss -i"}
FOREIGN_OPTIONS = {"--json", "--json-stream", "--get-server-output"}
# Names and values of files of other programs, and prefixes of ids.
FOREIGN_WORDS = {
    *("matrix", "values", "value", "timestamp", "CSV UTF-8", "az monitor metrics list"),
    *("mean", "sum", "max", "min", "bin", "second", "minute"),
    *("in", "out", "both", "payload", "ip", "wire", "coordinator-", "metric_declaration"),
}


def texts_of(path: Path) -> Iterator[str]:
    """Yield the string literals of a module, without docstrings. Values are written as X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield "".join(map(str, values))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts | docstrings
        ):
            yield node.value


def all_texts() -> Iterator[tuple[str, str]]:
    """Yield each text with the file that contains it."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "coordinator" / folder).rglob("*.py")):
            yield from ((path.name, text) for text in texts_of(path))


TEXTS = [
    (name, text)
    for name, text in all_texts()
    if CODE.search(text) or SETTING.search(text) or (" " in text and OPTION.search(text))
]


def _fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in _parts_of(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields_of(kind, f"{prefix}{name}.")


def _parts_of(annotation: Any) -> Iterator[Any]:
    """Yield a type, and the types in it, such as those of a union."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts_of(part)


def _subclasses(kind: Any) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


@cache
def known_fields() -> frozenset[str]:
    for module in SOURCES.values():
        importlib.import_module(f"broadside.coordinator.device.telemetry.{module}")
    models = (RunSpec, PairSummary, ColumnProfile, MetricDeclaration, *_subclasses(_Fields))
    paths = {name for model in models for name in _fields_of(model)}
    # `--set` accepts the last part of a name.
    # The device of a scenario is a mapping.
    paths |= {"device.path", "device.sku", "device.units"}
    # So are the options of an engine.
    paths |= {f"traffic.options.{name}" for name in connections.ConnectionsOptions.model_fields}
    return frozenset(paths | {name.rpartition(".")[2] for name in paths})


@cache
def known_settings() -> frozenset[str]:
    return frozenset(
        f"{settings.model_config.get('env_prefix', '')}{name}".upper()
        for _, settings in CLASSES
        for name in settings.model_fields
    )


@cache
def options_of(command: str) -> frozenset[str]:
    """Return the options of a command with all its subcommands."""

    def walk(one: Any) -> Iterator[str]:
        for parameter in one.params:
            yield from parameter.opts
        for inner in getattr(one, "commands", {}).values():
            yield from walk(inner)

    return frozenset(walk(load(command)))


def problem_with(code: str) -> str | None:
    """Return why a text in backticks names nothing that exists, or None if it does."""
    if code in FOREIGN_COMMANDS | FOREIGN_WORDS | known_settings():
        return None
    if code.startswith("broadside "):
        _, command, *arguments = shlex.split(code)
        if command not in COMMANDS:
            return f"no command {command}"
        missing = {a for a in arguments if a.startswith("--")} - options_of(command)
        return f"{command} has no {', '.join(missing)}" if missing else None
    if code.startswith("--"):
        return None  # see test_options_exist
    name = code.partition("=")[0]
    if FIELD.fullmatch(code) and (name in known_fields() or name.replace("X", "") == ""):
        return None
    return "no command, option, setting or field"


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_names_in_next_steps_exist(name: str, text: str) -> None:
    for code in CODE.findall(text):
        assert problem_with(code) is None, f"{name}: `{code}`: {problem_with(code)}"
    for setting in SETTING.findall(text):
        assert setting in known_settings(), f"{name}: {setting}"


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_options_in_next_steps_exist(name: str, text: str) -> None:
    every = frozenset().union(*map(options_of, COMMANDS)) | FOREIGN_OPTIONS
    missing = set(OPTION.findall(text)) - every
    assert not missing, f"{name}: {missing} in {text!r}"


def test_a_name_that_does_not_exist_is_detected() -> None:
    assert problem_with("broadside mend") == "no command mend"
    assert problem_with("broadside runs --mend") == "runs has no --mend"
    assert problem_with("objective.mend") is not None
    assert problem_with("objective.stop") is None
    assert problem_with("device.path=bypass") is None
