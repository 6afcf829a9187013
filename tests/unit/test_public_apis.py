"""Test that shipped code only uses public APIs in libraries, except for a list of exceptions.

Internals can change in any release. For example, typer 0.29 removed a function that
`typer>=0.27` still had, and no command could start. A distribution with an exception needs to be
pinned exactly in pyproject.toml.
"""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

import broadside

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "coordinator", "exchange", "lab", "dashboards")
PROJECT: Final = {"broadside", "deploy", "tests"}
# Documented in the standard library in spite of their names.
DOCUMENTED: Final = {"_exit", "_replace", "_asdict", "_fields", "_make"}

# Names added to classes by abc and typing.
PYTHON_PREFIXES: Final = ("_abc_", "_is_protocol", "_is_runtime_protocol")

# Internals used by each file, with their distribution.
EXCEPTIONS: Final = {
    # The SDK repeats attempts internally without a report, can wait without end for a link removed
    # by the service, and leaves the socket open when a close fails. It has no hook to change this.
    "exchange/azure/service_bus.py": (
        "azure-servicebus",
        {
            "_cbs_authenticator",
            "_close_handler",
            "_connection",
            "_handle_exception",
            "_handler",
            "_link",
            "_mgmt_link",
            "_mgmt_links",
            "_session",
            "_transport",
        },
    ),
    # uvicorn does not limit the request head or the number of idle connections. The class and its
    # callbacks have no leading underscore, but are not documented by uvicorn.
    "coordinator/bounded_listener.py": ("uvicorn", {"uvicorn.protocols.http.httptools_impl"}),
}

# Modules below the top level that should be used according to the library documentation.
DOCUMENTED_MODULES: Final = {
    "starlette.requests",
    "MLRsearch.trial_measurement",
    "azure.core",
    "azure.core.credentials",
    "azure.core.credentials_async",
    "azure.core.exceptions",
    "azure.core.pipeline.transport",
    "azure.data.tables",
    "azure.data.tables.aio",
    "azure.identity.aio",
    "azure.servicebus",
    "azure.servicebus.aio",
    "azure.servicebus.amqp",
    "azure.servicebus.exceptions",
    "azure.storage.blob",
    "azure.storage.blob.aio",
    "cryptography.exceptions",
    "cryptography.hazmat.primitives",
    "cryptography.hazmat.primitives.asymmetric",
    "cryptography.x509.oid",
    "cyclonedx.factory.license",
    "cyclonedx.model",
    "cyclonedx.model.bom",
    "cyclonedx.model.component",
    "cyclonedx.output",
    "cyclonedx.schema",
    "cyclonedx.validation.json",
    "fastapi.exceptions",
    "fastapi.openapi.utils",
    "fastapi.responses",
    "fastapi.routing",
    "fastapi.sse",
    "fastapi.staticfiles",
    "jmespath.exceptions",
    "limits.aio.storage",
    "limits.aio.strategies",
    "mcp.server.mcpserver",
    "mcp.server.mcpserver.exceptions",
    "numpy.lib.stride_tricks",
    "numpy.typing",
    "opentelemetry.exporter.otlp.proto.common.metrics_encoder",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.metrics.export",
    "opentelemetry.sdk.resources",
    "prometheus_client.core",
    "prometheus_client.registry",
    "pyarrow.parquet",
    "pysnmp.error",
    "pysnmp.hlapi.v3arch.asyncio",
    "rich.cells",
    "rich.console",
    "rich.live",
    "rich.progress",
    "rich.table",
    "rich.text",
    "starlette.datastructures",
    "starlette.exceptions",
    "starlette.responses",
    "starlette.types",
    "typer.core",
    "typer.main",
}
# Distribution for modules with a different name.
DISTRIBUTIONS: Final = {
    "azure.core": "azure-core",
    "azure.data.tables": "azure-data-tables",
    "azure.identity": "azure-identity",
    "azure.servicebus": "azure-servicebus",
    "azure.storage.blob": "azure-storage-blob",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry.sdk": "opentelemetry-sdk",
    # Separate distributions that pydantic and mcp require in one exact version.
    "pydantic_core": "pydantic",
    "mcp_types": "mcp",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in PROJECT and root not in sys.stdlib_module_names


def shipped(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield the module, the imported name and the local name for all library imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_library(node.module or ""):
            for alias in node.names:
                yield node.module or "", alias.name, alias.asname or alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_library(alias.name):
                    yield alias.name, "", alias.asname or alias.name.partition(".")[0]


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield all private names defined in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ("self", "cls", "made")
        ):
            yield node.attr


def internals(source: str, project_names: set[str]) -> set[str]:
    """Return the library internals used in a source text."""
    tree = ast.parse(source)
    result, library_names = set(), set()
    for module, name, called in imported(tree):
        library_names.add(called)
        result |= {item for item in (*module.split("."), name) if is_private(item)}
        if "." in module and module not in DOCUMENTED_MODULES:
            result.add(module)
    known = project_names | DOCUMENTED
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) and node.attr not in known:
                result.add(node.attr)
            # An attribute in a library module or class is replaced.
            if (
                isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in library_names
            ):
                result.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and is_private(str(attribute.value)):
                result |= {str(attribute.value)} - known
    return result


def used_internals() -> dict[str, set[str]]:
    """Return the internals used in shipped files, by file."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in shipped(*PACKAGES, "deploy")}
    local = {name for text in texts.values() for name in defined(ast.parse(text))}
    return {
        file: used
        for file, text in texts.items()
        # If a name is used both here and in an exception, it should not hide the exception.
        if (used := internals(text, local - EXCEPTIONS.get(file, ("", set()))[1]))
    }


def test_used_library_internals_are_listed() -> None:
    assert used_internals() == {file: used for file, (_, used) in EXCEPTIONS.items()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "from typer.main import get_click_param\nfrom typer.models import ParamMeta",
            "typer.models",
        ),
        ("from fastapi.dependencies.utils import get_flat_params", "fastapi.dependencies.utils"),
        ("import httpx._client", "_client"),
        ("from rich import _log", "_log"),
        ("session._retry_connection = False", "_retry_connection"),
        ("setattr(session, '_retry_connection', False)", "_retry_connection"),
        ("import uvicorn\nuvicorn.Server = None", "uvicorn.Server"),
    ],
)
def test_library_internal_is_detected(source: str, expected: str) -> None:
    assert expected in internals(source, set())


def test_library_with_used_internals_is_pinned() -> None:
    declared = dict(requirements())
    for distribution, _ in EXCEPTIONS.values():
        assert re.fullmatch(r"==[\d.]+", declared[distribution]), distribution


# Inherited internals.


def codes(function: object) -> Iterator[CodeType]:
    """Yield the code for a function, a property or a method, and for nested functions."""
    if isinstance(function, property):
        function = function.fget
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [co_const for co_const in code.co_consts if isinstance(co_const, CodeType)]


@functools.cache
def private_names(of: type) -> frozenset[str]:
    """Return the private names that a class defines or that its functions use."""
    results = {name for name in vars(of) if is_private(name)}
    for var in vars(of).values():
        # Other members are added by a decorator or by a base class in the standard library.
        if getattr(var, "__module__", of.__module__) == of.__module__:
            for code in codes(var):
                results |= {name for name in code.co_names if is_private(name)}
    return frozenset(name for name in results if not name.startswith(PYTHON_PREFIXES))


def project_modules() -> Iterator[ModuleType]:
    for result in pkgutil.walk_packages(broadside.__path__, "broadside."):
        if (
            result.name.endswith(("__main__", ".libbodies", ".libconnections", ".libgate"))
            or ".dashboards." in result.name
        ):
            continue
        yield importlib.import_module(result.name)


# They are imported here because a module of C functions is loaded, which a test must not do.
MODULES: Final = tuple(project_modules())


def project_classes() -> Iterator[type]:
    for module in MODULES:
        for var in vars(module).values():
            if isinstance(var, type) and var.__module__ == module.__name__:
                yield var


def test_subclasses_share_no_private_names_with_libraries() -> None:
    shared = {}
    for item in project_classes():
        bases = [base for base in item.__mro__ if is_library(base.__module__)]
        library_names = frozenset[str]().union(*map(private_names, bases))
        if common := private_names(item) & library_names:
            shared[f"{item.__module__}.{item.__qualname__}"] = common
    assert shared == {}


def test_shared_private_name_is_detected() -> None:
    class Base:
        def use(self) -> Any:
            return self._inside()  # type: ignore[attr-defined]

    class Derived(Base):
        def _inside(self) -> int:
            return 1

    assert private_names(Derived) & private_names(Base) == {"_inside"}


# Dependencies.


def requirements() -> Iterator[tuple[str, str]]:
    """Yield the dependencies in pyproject.toml and in its extras, each with its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    for line in [
        *project["dependencies"],
        *(requirement for extra in extras for requirement in extra),
    ]:
        name, bounds = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?(.*)", line).groups()  # type: ignore[union-attr]
        # An extra that includes another extra.
        if name != project["name"]:
            yield canonical(name), bounds


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


distributions = functools.cache(packages_distributions)


def distribution_of(module: str) -> str:
    """Return the distribution for a module. azure and opentelemetry are split into many
    distributions."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        if (result := DISTRIBUTIONS.get(".".join(parts[:count]))) is not None:
            return result
    [result] = set(distributions()[parts[0]])
    return canonical(result)


def test_imported_libraries_are_declared_with_a_lower_bound() -> None:
    """Check this, because an undeclared dependency could be removed in the next release."""
    declared = dict(requirements())
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in shipped("agent", "coordinator", "exchange", "lab")
        for module, *_ in imported(ast.parse(path.read_text()))
        if distribution_of(module) not in declared
    }
    assert undeclared == set()
    assert [name for name, bounds in declared.items() if not re.match(r"[>=]=\d", bounds)] == []


def test_names_in_texts_exist() -> None:
    """Commands name their models as ``module:Name``, so that they load them only when needed."""
    pattern = re.compile(
        r"(?:broadside\.)?((?:agent|coordinator|exchange|lab)[\w.]*):([A-Za-z_]\w*)"
    )
    names = {
        match.groups()
        for path in shipped("agent", "coordinator", "exchange", "lab")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (match := pattern.fullmatch(node.value))
    }
    assert len(names) > 20
    for module, name in names:
        assert hasattr(importlib.import_module(f"broadside.{module}"), name), f"{module}:{name}"
