"""Texts that the code can create, read from its syntax tree.

An expression such as ``f"{formatting.rate(received)} is below the limit"`` becomes a template with
names in italics for values that are only known when it runs: ``*received* is below the limit``.
Constants have their value. Text that is only there sometimes is in square brackets. An expression
with several results has several templates.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from tests.docs_build.constants_page import ROOT

PACKAGE: Final = "broadside."
NAME_ALONE: Final = re.compile(r"\*[^*]+\*")
FIELD: Final = re.compile(r"\{(\w+)[^{}]*\}")
UNITS: Final = re.compile(r"^(_|describe_)+|_(ratio|s|at|count|bits_per_second)$")
TEXT_METHODS: Final = frozenset({"rstrip", "strip", "removeprefix"})
# Methods that say less than the name of their object.
NAMELESS: Final = TEXT_METHODS | {"total_seconds", "describe"}
# An alternative with this number of spaces or more is a clause with its own template.
CLAUSE_SPACES: Final = 4
DEPTH_MAX: Final = 12
UNKNOWN: Final = object()
# Values of names in functions, by module and function, which the calls do not have.
KNOWN_VALUES: Final[dict[str, Mapping[str, Any]]] = {}
Functions = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """Syntax tree of a module with its names at run time."""

    name: str
    names: Mapping[str, Any]
    functions: Mapping[str, Functions]
    owners: Mapping[ast.AST, Functions]
    branches: "Mapping[ast.AST, tuple[Branch, ...]]"
    calls: Sequence[ast.Call]


@dataclass(frozen=True, slots=True)
class Branch:
    """One block around a statement.

    Attributes:
        of: Statement with the block, such as an ``if``.
        part: Name of the block in the statement, such as ``orelse``.
    """

    of: ast.AST
    part: str

    @property
    def is_left(self) -> bool:
        """True if nothing after the statement runs after this block."""
        last = getattr(self.of, self.part)[-1]
        return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _branches(
    node: ast.AST, around: tuple[Branch, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[Branch, ...]]]:
    """Yield the blocks around all nodes below a node, the outermost first."""
    yield node, around
    for part, value in ast.iter_fields(node):
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.stmt):
                yield from _branches(inner, (*around, Branch(node, part)))
            elif isinstance(inner, ast.AST):
                yield from _branches(inner, around)


@dataclass(frozen=True, slots=True)
class Scope:
    """Place of an expression.

    Attributes:
        module: Module with the expression.
        function: Function with the expression. None at the top of the module.
        values: Known values of names, such as of the variable of a loop over a constant table.
        arguments: Expressions that a call has for the parameters, with their scope.
        open: Names and functions that are being read, so that none is read again.
    """

    module: Module
    function: Functions | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, "tuple[ast.expr, Scope]"] = field(default_factory=dict)
    open: frozenset[tuple[int, str]] = frozenset()

    def entered(self, name: str) -> "Scope":
        """Return this scope while a name is read."""
        opened = self.open | {(id(self.function), name)}
        return Scope(self.module, self.function, self.values, self.arguments, opened)

    def is_open(self, name: str) -> bool:
        """Return True if the name is being read, or if the texts are nested too deeply."""
        return (id(self.function), name) in self.open or len(self.open) > DEPTH_MAX


@cache
def load(path: Path) -> Module:
    """Return a module of the product by its file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = import_module(PACKAGE + ".".join(part for part in parts if part != "__init__"))
    tree = ast.parse(path.read_text("utf-8"))
    owners: dict[ast.AST, Functions] = {}
    functions: dict[str, Functions] = {}
    for node in ast.walk(tree):
        if isinstance(node, Functions):
            functions[node.name] = node
            # An inner function is visited after its outer one, and replaces it.
            owners.update((inner, node) for inner in ast.walk(node) if inner is not node)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return Module(path.stem, vars(module), functions, owners, dict(_branches(tree)), calls)


def scope_of(node: ast.AST, module: Module, values: Mapping[str, Any] | None = None) -> Scope:
    """Return the scope of an expression in a module."""
    return Scope(module, module.owners.get(node), values or {})


@cache
def _local_names(function: Functions) -> frozenset[str]:
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return frozenset(stored | arguments)


def evaluate(node: ast.expr, scope: Scope) -> Any:
    """Return the value of an expression of constants, or UNKNOWN."""
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    local = _local_names(scope.function) if scope.function else frozenset()
    if names & (local - scope.values.keys()):
        return UNKNOWN
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<text>", "eval")
    try:
        # The expressions are those of this repository.
        return eval(code, dict(scope.module.names), dict(scope.values))  # noqa: S307
    except Exception:
        # A value that is known only at run time.
        return UNKNOWN


def texts(node: ast.expr, scope: Scope) -> tuple[str, ...]:
    """Return the templates of an expression, without duplicates. None is an empty text."""
    value = evaluate(node, scope)
    if value is None:
        return ("",)
    if isinstance(value, str | int | float):
        return (value if isinstance(value, str) else f"{value:g}",)
    return tuple(dict.fromkeys(_alternatives(node, scope)))


def _alternatives(node: ast.expr, scope: Scope) -> Iterator[str]:
    match node:
        case ast.JoinedStr(values=parts):
            yield from map("".join, product(*(texts(part, scope) for part in parts)))
        case ast.FormattedValue():
            yield from _inline(node, scope)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if not (
            _is_number(left) or _is_number(right)
        ):
            yield from map("".join, product(texts(left, scope), texts(right, scope)))
        case ast.BoolOp(op=ast.Or(), values=parts):
            for part in parts:
                yield from filter(None, texts(part, scope))
        case ast.Subscript(value=value, slice=ast.Slice()):
            # A limit of the length.
            yield from texts(value, scope)
        case ast.BoolOp(values=parts):
            yield from ("", *texts(parts[-1], scope))
        case ast.IfExp(test=test, body=body, orelse=other):
            known = evaluate(test, scope)
            yield from () if known is not UNKNOWN and not known else texts(body, scope)
            yield from () if known is not UNKNOWN and known else texts(other, scope)
        case ast.Name(id=name):
            yield from () if scope.is_open(name) else _of_name(node, scope)
        case ast.Call():
            yield from _of_call(node, scope)
        case _:
            yield placeholder(node)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, str)


def _inline(node: ast.FormattedValue, scope: Scope) -> Sequence[str]:
    """Return the text for a value in a sentence, or several if they are sentences themselves."""
    value = evaluate(node.value, scope)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, int | float) and node.format_spec is not None:
        return (format(value, "".join(texts(node.format_spec, scope))),)
    found = texts(node.value, scope)
    shown = [text for text in found if text]
    is_name = isinstance(node.value, ast.Name)
    if is_name and len(shown) > 1 and all(text.count(" ") >= CLAUSE_SPACES for text in found):
        return found
    if len(shown) > 1 and any(NAME_ALONE.search(text) for text in shown):
        shown = [placeholder(node.value)]
    text = " / ".join(shown)
    if isinstance(node.value, ast.Name | ast.Call) and NAME_ALONE.fullmatch(text.strip("[ ].")):
        is_optional = text.startswith("[")
        text = f"[ {placeholder(node.value)}]" if is_optional else placeholder(node.value)
    if "" in found and shown:
        return (f"[{text}]",)
    return (f"({text})" if len(shown) > 1 else text,)


def _of_name(use: ast.Name, scope: Scope) -> Iterator[str]:
    """Yield the templates of a variable or of a parameter."""
    name = use.id
    inner = scope.entered(name)
    if name in scope.arguments:
        yield from texts(*scope.arguments[name])
        return
    function = scope.function
    stored = _reaching(use, function, scope.module) if function else []
    results: list[str] = []
    for value, is_added in stored:
        new = texts(value, inner)
        if is_added:
            results = [f"{old}[{text}]" for old in results for text in new]
        else:
            results += new
    if not stored and function is not None:
        results = list(_from_callers(name, function, inner))
    yield from results or (f"*{name.replace('_', ' ').strip()}*",)


def _reaching(use: ast.Name, function: Functions, module: Module) -> list[tuple[ast.expr, bool]]:
    """Return the values that a variable can have where it is used, the oldest first."""
    around = module.branches[use]
    reaching: list[tuple[ast.expr, bool]] = []
    stored = sorted(_assigned(use.id, function), key=lambda one: -one[0].lineno)
    for value, is_added in stored:
        blocks = module.branches[value]
        if value.lineno > use.lineno or any(
            block not in around and (block.is_left or any(other.of is block.of for other in around))
            for block in blocks
        ):
            continue
        reaching.insert(0, (value, is_added))
        if not is_added and blocks == around[: len(blocks)]:
            break
    return reaching


def is_reachable(node: ast.AST, scope: Scope) -> bool:
    """Return False if the condition of an ``if`` around a node is known to exclude the node."""
    for block in scope.module.branches[node]:
        if not isinstance(block.of, ast.If) or block.part != "body":
            continue
        test = block.of.test
        parts = test.values if isinstance(test, ast.BoolOp) else [test]
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            continue
        if any((known := evaluate(part, scope)) is not UNKNOWN and not known for part in parts):
            return False
    return True


def _assigned(name: str, function: Functions) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the values of a variable, with True for those that are added to the one before."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value, False
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for one, value in zip(names, values, strict=True):
                    if isinstance(one, ast.Name) and one.id == name:
                        yield value, False
            case ast.NamedExpr(target=ast.Name(id=found), value=value) if found == name:
                yield value, False
            case ast.AugAssign(target=ast.Name(id=found), value=value) if found == name:
                yield value, True
            case _:
                pass


def parameters(function: Functions) -> Sequence[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args)]


def arguments_of(call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
    """Return the expressions of a call by the name of the parameter."""
    return {
        **dict(zip(names, call.args, strict=False)),
        **{key.arg: key.value for key in call.keywords if key.arg},
    }


def _from_callers(name: str, function: Functions, scope: Scope) -> Iterator[str]:
    """Yield the templates that the callers in the same module have for a parameter."""
    for call in scope.module.calls:
        if not isinstance(call.func, ast.Name) or call.func.id != function.name:
            continue
        given = arguments_of(call, parameters(function)).get(name)
        if given is not None:
            place = Scope(
                scope.module, scope.module.owners.get(call), scope.values, open=scope.open
            )
            yield from texts(given, place)


def _of_call(call: ast.Call, scope: Scope) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in ("upper", "lower"):
        # The first letter of a text whose rest follows.
        yield ""
    elif isinstance(function, ast.Attribute) and function.attr == "join":
        yield _joined(function.value, call.args[0], scope) or placeholder(call)
    elif isinstance(function, ast.Attribute) and function.attr in TEXT_METHODS:
        given = [evaluate(one, scope) for one in call.args]
        yield from (getattr(one, function.attr)(*given) for one in texts(function.value, scope))
    elif isinstance(function, ast.Attribute) and function.attr == "format":
        if isinstance(made := evaluate(function.value, scope), str):
            yield FIELD.sub(r"*\1*", made).replace("_", " ")
        else:
            yield placeholder(call.args[0] if call.args else call)
    else:
        yield from _of_function(call, scope) or (placeholder(call),)


def _joined(separator: ast.expr, items: ast.expr, scope: Scope) -> str:
    """Return one template for a list that is joined, or an empty text if it is not known."""
    between = "".join(texts(separator, scope))
    if isinstance(items, ast.ListComp | ast.GeneratorExp):
        inner = [text for text in texts(items.elt, scope) if text]
        if len(inner) != 1:
            return ""
        # Texts without a separator, of which there can be none.
        return inner[0] if between else f"[{inner[0]}]"
    function = scope.function
    if not isinstance(items, ast.Name) or function is None or scope.is_open(items.id):
        return ""
    stored = [value for value, _ in _assigned(items.id, function)]
    inside = scope.entered(items.id)
    if len(stored) != 1:
        return ""
    if isinstance(stored[0], ast.ListComp):
        return _joined(separator, stored[0], inside)
    if not isinstance(stored[0], ast.List):
        return ""
    first = [_one(one, inside) for one in stored[0].elts]
    added = [
        _one(node.args[0], inside)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{items.id}.append"
    ]
    begin = between.join(first) or "".join(f"[{one}]" for one in added[:1])
    return begin + "".join(f"[{between}{one}]" for one in (added if first else added[1:]))


def _one(node: ast.expr, scope: Scope) -> str:
    found = texts(node, scope)
    return found[0] if len(found) == 1 else placeholder(node)


def _of_function(call: ast.Call, scope: Scope) -> tuple[str, ...]:
    """Return the templates that a function of the product returns, if it returns a text."""
    made = evaluate(call.func, scope)
    if not isinstance(made, FunctionType) or not made.__module__.startswith(PACKAGE):
        return ()
    if made.__module__.endswith(".formatting"):
        return ()
    module = load(Path(made.__code__.co_filename).resolve())
    function = module.functions.get(made.__name__)
    if function is None or function.returns is None or scope.is_open(made.__name__):
        return ()
    if not ast.unparse(function.returns).startswith("str"):
        return ()
    inner = called(function, call, scope.entered(made.__name__), module)
    return tuple(returned_texts(function, inner))


def called(function: Functions, call: ast.Call, scope: Scope, module: Module) -> Scope:
    """Return the scope of a function that a call in another scope enters."""
    given = arguments_of(call, parameters(function))
    values = KNOWN_VALUES.get(f"{module.name}.{function.name}", {})
    first = len(parameters(function)) - len(function.args.defaults)
    defaults = dict(zip(parameters(function)[first:], function.args.defaults, strict=True))
    arguments = {
        **{name: (one, Scope(module)) for name, one in defaults.items()},
        **{name: (one, scope) for name, one in given.items()},
    }
    return Scope(module, function, {**scope.values, **values}, arguments, scope.open)


def returned_texts(function: Functions, scope: Scope) -> Iterator[str]:
    """Yield the templates that a function can return."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from texts(node.value, scope)


def placeholder(node: ast.expr) -> str:
    """Return a name in italics for a value that is only known at run time."""
    return f"*{UNITS.sub('', _name_of(node)).replace('_', ' ').strip() or 'value'}*"


def _name_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.FormattedValue(value=inner) | ast.Subscript(value=inner):
            return _name_of(inner)
        case ast.BinOp(left=ast.Constant(), right=inner):
            return _name_of(inner)
        case ast.BinOp(left=inner) | ast.UnaryOp(operand=inner) | ast.IfExp(body=inner):
            return _name_of(inner)
        case ast.BoolOp(values=[inner, *_]):
            return _name_of(inner)
        case ast.Call(func=ast.Name(id="len" | "sum")):
            return "number"
        case ast.Call(func=ast.Attribute(attr="join" | "format"), args=[inner, *_]):
            return _name_of(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="formatting")), args=[inner, *_]):
            return _name_of(inner)
        case ast.Call(func=ast.Name(id="max" | "min" | "abs" | "map"), args=[*_, inner]):
            return _name_of(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in NAMELESS:
            return _name_of(inner)
        case ast.Call(func=inner):
            return _name_of(inner)
        case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
            return _name_of(inner)
        case _:
            return "value"
