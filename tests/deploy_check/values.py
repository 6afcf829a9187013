"""Resolution of references to a value or resource, through calls and outputs.

It supports plain references only: ``var.x``, ``local.x``, ``module.m.out``, members of these
objects, and ``azurerm_t.n.attribute``. Each may have an index, ``one()`` or the first argument of
``try()``. Other expressions (conditions, loops, functions) are :data:`UNKNOWN`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy_check.hcl import ROOT, Block, Module, called_folder, is_expression

UNKNOWN: Final = object()
_PLAIN: Final = re.compile(
    r"\$\{\s*(?:(?:one|try)\()?\s*([a-z_][\w.\-\[\]*\"]*)\s*(?:,[^{}]*)?\)?\s*\}"
)
_INDEX: Final = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Resource at the end of a reference."""

    module: Module
    kind: str
    name: str
    attribute: str

    @property
    def block(self) -> Block:
        return self.module.resources[self.kind, self.name]


class Values:
    """Values of expressions in modules, with the given root variables."""

    def __init__(self, modules: Mapping[str, Module], given: Mapping[str, Any]) -> None:
        self._modules = modules
        self._given = given

    def of(self, module: Module, value: Any) -> Any:
        """Return a literal, a :class:`Found`, or :data:`UNKNOWN`."""
        # Path of the value in an object.
        within: list[str] = []
        # The limit ends circular references.
        for _ in range(20):
            while within and isinstance(value, Mapping):
                value = value.get(within.pop(0), UNKNOWN)
            if not is_expression(value):
                return UNKNOWN if within else value
            plain = _PLAIN.fullmatch(value)
            if plain is None:
                return UNKNOWN
            step = self._step(module, _INDEX.sub("", plain[1]).split("."))
            if step is UNKNOWN or isinstance(step, Target):
                return step
            module, value, more = step
            within = [*more, *within]
        return UNKNOWN

    def _step(self, module: Module, path: list[str]) -> Any:
        """Return the module, the value and the remaining path of a reference."""
        match path:
            case ["var", name, *more] if module.folder == ROOT:
                if name in self._given:
                    return module, self._given[name], more
                block = module.variables.get(name)
                if block is not None and "default" in block.arguments:
                    return module, block.arguments["default"], more
            case ["var", name, *more]:
                for caller, call in self._callers(module):
                    if name in call.arguments:
                        return caller, call.arguments[name], more
            case ["local", name, *more] if name in module.locals:
                return module, module.locals[name], more
            case ["module", name, output, *more] if name in module.calls:
                called = self._modules.get(called_folder(module, module.calls[name]))
                if called is not None and output in called.outputs:
                    return called, called.outputs[output].arguments.get("value"), more
            case [kind, name, *rest] if (kind, name) in module.resources:
                return Target(module=module, kind=kind, name=name, attribute=".".join(rest))
        return UNKNOWN

    def _callers(self, module: Module) -> Iterator[tuple[Module, Block]]:
        for caller in self._modules.values():
            for call in caller.calls.values():
                if called_folder(caller, call) == module.folder:
                    yield caller, call
