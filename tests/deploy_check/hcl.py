"""Parser of Terraform files: modules with their resources, variables and calls.

Expressions stay text in ``${...}``, as the parser returns them. Literal strings lose their quotes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

import hcl2

# Folder of the root module.
ROOT: Final = ""
_MARK: Final = "__is_block__"
_OPTIONS: Final = hcl2.SerializationOptions(with_comments=False)


class Unreadable(Exception):
    """A file is not valid Terraform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Arguments and nested blocks of a block. Dynamic blocks are among the nested ones."""

    arguments: Mapping[str, Any]
    blocks: Mapping[str, "tuple[Block, ...]"]
    # The ``for_each`` of a `dynamic` block, which creates zero or more blocks.
    for_each: Any = None

    @property
    def dynamic(self) -> bool:
        return self.for_each is not None

    def literal(self, name: str) -> Any:
        """Return an argument with a literal value, else None."""
        value = self.arguments.get(name)
        return None if is_expression(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One folder of Terraform files."""

    folder: str
    variables: Mapping[str, Block]
    locals: Mapping[str, Any]
    outputs: Mapping[str, Block]
    calls: Mapping[str, Block]
    # The keys are type and name.
    resources: Mapping[tuple[str, str], Block]
    data: Mapping[tuple[str, str], Block]
    providers: Mapping[str, Block] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.folder or "root"


def load(files: Mapping[str, str]) -> dict[str, Module]:
    """Return modules by folder from file texts by path. Raises :class:`Unreadable`."""
    folders: dict[str, dict[str, Any]] = {}
    for path, text in sorted(files.items()):
        if not path.endswith(".tf"):
            continue
        folder = str(PurePosixPath(path).parent).removeprefix(".")
        merged = folders.setdefault(folder, {})
        for kind, result in _parse(text, path).items():
            merged.setdefault(kind, []).extend(result)
    return {folder: _module(folder, merged) for folder, merged in folders.items()}


def read_values(text: str, path: str) -> dict[str, Any]:
    """Read a ``.tfvars`` file. Raises :class:`Unreadable`."""
    return {name: _clean(value) for name, value in _parse(text, path).items()}


def is_expression(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def called_folder(module: Module, call: Block) -> str:
    """Return the folder of a module call. Raises ``KeyError`` for a call without a source."""
    parts: list[str] = []
    for part in (
        *PurePosixPath(module.folder).parts,
        *PurePosixPath(call.arguments["source"]).parts,
    ):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def expressions(value: Any) -> Iterator[str]:
    """Yield every expression in an argument, a block or below it."""
    match value:
        case str() if is_expression(value):
            yield value
        case Block():
            yield from expressions(value.for_each)
            yield from expressions(value.arguments)
            yield from expressions(value.blocks)
        case Mapping():
            for key, inner in value.items():
                if is_expression(key):
                    yield key
                yield from expressions(inner)
        case list() | tuple():
            for inner in value:
                yield from expressions(inner)


@cache
def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return dict(hcl2.loads(text, serialization_options=_OPTIONS))
    # The parser's errors have no common base class.
    except Exception as error:
        raise Unreadable(f"{path}: {' '.join(str(error).split())[:200]}") from error


def _module(folder: str, parsed: Mapping[str, list[Any]]) -> Module:
    one_label = {
        kind: {
            _aliased(_bare(label), body): _block(body)
            for entry in parsed.get(kind, ())
            for label, body in _labels(entry)
        }
        for kind in ("variable", "output", "module", "provider")
    }
    two_labels = {
        kind: {
            (_bare(outer), _bare(label)): _block(body)
            for entry in parsed.get(kind, ())
            for outer, inner in _labels(entry)
            for label, body in _labels(inner)
        }
        for kind in ("resource", "data")
    }
    return Module(
        folder=folder,
        variables=one_label["variable"],
        outputs=one_label["output"],
        calls=one_label["module"],
        providers=one_label["provider"],
        resources=two_labels["resource"],
        data=two_labels["data"],
        locals={
            name: _clean(value)
            for entry in parsed.get("locals", ())
            for name, value in entry.items()
            if name != _MARK
        },
    )


def _aliased(label: str, body: Mapping[str, Any]) -> str:
    """Return the label with the alias of a second provider with the same name."""
    return f"{label}.{_bare(body['alias'])}" if "alias" in body else label


def _labels(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((label, body) for label, body in entry.items() if label != _MARK)


def _block(body: Mapping[str, Any], for_each: Any = None) -> Block:
    arguments: dict[str, Any] = {}
    blocks: dict[str, list[Block]] = {}
    for name, value in body.items():
        if name == _MARK:
            continue
        if not _is_blocks(value):
            arguments[_bare(name)] = _clean(value)
            continue
        for nested in value:
            if name != "dynamic":
                blocks.setdefault(name, []).append(_labelled(nested))
                continue
            for label, inner in _labels(nested):
                for content in inner["content"]:
                    made = _block(content, for_each=_clean(inner["for_each"]))
                    blocks.setdefault(_bare(label), []).append(made)
    return Block(
        arguments=arguments,
        blocks={name: tuple(result) for name, result in blocks.items()},
        for_each=for_each,
    )


def _labelled(body: Mapping[str, Any]) -> Block:
    """Return a nested block without its label, such as that of a provisioner."""
    named = [inner for inner in body.values() if isinstance(inner, dict) and _MARK in inner]
    return _block(named[0] if _MARK not in body and named else body)


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, dict) and _has_mark(item) for item in value
    )


def _has_mark(value: Mapping[str, Any]) -> bool:
    return _MARK in value or any(
        isinstance(inner, dict) and _has_mark(inner) for inner in value.values()
    )


def _clean(value: Any) -> Any:
    match value:
        case str():
            return _text(value)
        case dict():
            return {_bare(key): _clean(inner) for key, inner in value.items() if key != _MARK}
        case list():
            return [_clean(inner) for inner in value]
    return None if value == "null" else value


def _text(value: str) -> Any:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return None if value in ("null", "${null}") else value


def _bare(name: str) -> str:
    return name.strip('"')
