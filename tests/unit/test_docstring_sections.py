"""Test the rule for sections in docstrings of public functions.

- More than one argument needs ``Args:``, and each argument that can be None says what None means.
- ``Returns:`` (or ``Yields:``) is needed too, unless the first line begins with "Return" or "Yield"
  and the value is not a tuple, an array or a mapping, and is never None. A number has its unit in
  the name of the function or in the text. A bool begins with "Return True if".
- With one argument, the first line is enough. It says when the value is None.
- A function that raises an exception itself has ``Raises:``.

Exempt are routes, commands, validators and properties, which have other descriptions, and methods
without a docstring, which implement a documented interface.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("agent", "exchange", "lab", "deploy", "coordinator")
SKIPPED_PARTS = {"node_modules", ".terraform"}
EXEMPT_DECORATORS = re.compile(
    r"\.(get|post|put|patch|delete|head|command|exception_handler|setter)$"
    r"|^(OperationRoute|property|cached_property|overload|override|fixture|field_validator|model_validator)$"
)
# Values with parts, which need a text about their shape.
PARTS = re.compile(r"(tuple|dict|Mapping|NDArray)\[|Floats|Ints")
UNIT_IN_NAME = re.compile(r"_(s|ms|at|bytes|bits|bits_per_second|ratio|count|usd|ppm|per_second)$")
UNIT = re.compile(
    r"\b(seconds?|s|ms|bytes?|bits?|bit/s|ratio|share|0 to 1|dollars|USD|hours?|number of|factor"
    r"|without (a )?unit|per second|probability|variance|NaN)\b|%"
)
SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST) -> Iterator[Function]:
    """Yield public functions and public methods of public classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if not child.name.startswith("_"):
                yield child
        elif not (isinstance(child, ast.ClassDef) and child.name.startswith("_")):
            yield from functions(child)


def decorators(function: Function) -> Iterator[str]:
    for decorator in function.decorator_list:
        yield ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def can_be_none(annotation: ast.expr | None) -> bool:
    text = ast.unparse(annotation) if annotation is not None else ""
    return text != "None" and bool(re.search(r"\bNone\b", re.sub(r"\[.*\]", "", text)))


def raises(function: Function) -> bool:
    """Return True if the function itself raises a new exception."""
    inner = {
        id(node)
        for child in ast.walk(function)
        if isinstance(child, Function | ast.Lambda) and child is not function
        for node in ast.walk(child)
    }
    return any(
        isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and not ast.unparse(node.exc.func).endswith(("NotImplementedError", "AssertionError"))
        for node in ast.walk(function)
        if id(node) not in inner
    )


def missing_sections(function: Function) -> Iterator[str]:
    """Yield the sections, or their parts, that the docstring of a function lacks."""
    text = ast.get_docstring(function)
    if text is None or any(EXEMPT_DECORATORS.search(name) for name in decorators(function)):
        return
    spec = function.args
    arguments = [
        argument
        for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
        if argument is not None and argument.arg not in ("self", "cls")
    ]
    sections = set(SECTION.findall(text))
    if len(arguments) > 1 and "Args" not in sections:
        yield "Args"
    if raises(function) and "Raises" not in sections:
        yield "Raises"
    for argument in arguments:
        if can_be_none(argument.annotation) and "Args" in sections:
            entry = re.search(rf"^ *\*?{argument.arg}: ((?:.+\n?)+?)(?=^ *\w+: |^$|\Z)", text, re.M)
            if entry is None or not re.search("None|efault", entry[1]):
                yield f"Args: None of {argument.arg}"
    returned = ast.unparse(function.returns) if function.returns else "None"
    if returned == "None" or sections & {"Returns", "Yields"}:
        return
    optional = can_be_none(function.returns)
    if len(arguments) < 2:
        if optional and "None" not in text:
            yield "Returns: None"
    elif optional or PARTS.match(returned) or not text.startswith(("Return ", "Yield ")):
        yield "Returns"
    elif returned == "bool" and not text.startswith("Return True if"):
        yield "Returns: True"
    elif returned in ("float", "int") and not (
        UNIT_IN_NAME.search(function.name) or UNIT.search(text)
    ):
        yield "Returns: unit"


def is_command(path: Path, function: Function) -> bool:
    """Return True for a command, as its options are described by annotations."""
    return "cli" in path.parts and ast.unparse(function.returns or ast.Constant(None)) == "None"


def found_in(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {section}"
        for path in sorted(folder.rglob("*.py"))
        if not SKIPPED_PARTS & set(path.parts)
        for function in functions(ast.parse(path.read_text("utf-8")))
        if not is_command(path, function)
        for section in missing_sections(function)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_public_functions_have_sections(folder: str) -> None:
    found = found_in(ROOT / folder)
    assert not found, "\n".join(found)
