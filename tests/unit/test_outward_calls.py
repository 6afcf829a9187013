"""Test that all calls to other hosts have a total deadline, in seconds and bytes.

HTTP clients should only be used in ``exchange.http.bounded.ask``, which has both limits. Other
calls are listed in :data:`OTHERS` with the reason why they are limited.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# The lab is not included, because it only uses the local host.
PACKAGES: Final = ("agent", "coordinator", "exchange")

# Maps the file and function to the limit that is used there.
OTHERS: Final[Mapping[tuple[str, str], str]] = {
    ("exchange/http/bounded.py", "ask"): "the only location",
    (
        "exchange/http/coordinator_client.py",
        "_read_stream",
    ): "an endless stream that ends when it is silent",
    ("coordinator/cli/api_client.py", "events"): "an endless stream for a run that is watched",
    ("exchange/azure/bounded_transport.py", "open"): "wire.py: a timeout round each call",
    ("agent/idle_rtt.py", "handshake_rtts"): "a timeout round each connection, nothing is read",
    ("agent/canary_sender.py", "send"): "a timeout round each request",
    ("exchange/ping.py", "handshake"): "device_pings.py: a timeout round each, nothing is read",
    (
        "coordinator/device/telemetry/snmp_client.py",
        "_request",
    ): "a datagram; polling.py bounds a round",
    ("coordinator/cli/azure_firewall_commands.py", "set_capacity"): "the user's own command",
    ("coordinator/cli/installed_services.py", "run_in_sandbox"): "systemctl, of this host",
}

_LIBRARIES: Final = frozenset(
    {"http.client", "urllib.request", "urllib3", "smtplib", "ftplib", "telnetlib", "socketserver"}
)
_CLIENTS: Final = frozenset({"AsyncClient", "Client", "bounded_client", "open_client"})
_VERBS: Final = frozenset(
    {"stream", "send", "request", "get", "post", "put", "patch", "delete", "head", "options"}
)
# Functions in modules that open a connection or send by themselves.
_CALLS: Final = frozenset(
    {
        *(f"httpx.{verb}" for verb in _VERBS),
        *(f"requests.{verb}" for verb in _VERBS),
        "httpx.Client",
        "aiohttp.ClientSession",
        "aiohttp.request",
        "asyncio.open_connection",
        "socket.create_connection",
        "urllib.request.urlopen",
    }
)
_OPENERS: Final = frozenset({"create_connection", "getaddrinfo", "urlretrieve", "urlopen"})


def _dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for names and attributes, or an empty text for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _client_names(tree: ast.AST) -> set[str]:
    """Return the names and attributes used for a client."""

    def creates_client(node: ast.AST | None) -> bool:
        return isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in _CLIENTS

    result: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=annotation) if (
                annotation and "AsyncClient" in ast.unparse(annotation)
            ):
                result.add(name)
            case ast.AnnAssign() if "AsyncClient" in ast.unparse(node.annotation):
                result.add(_dotted(node.target).rpartition(".")[2])
            case ast.Assign(targets=targets, value=value) if creates_client(value):
                result |= {_dotted(target).rpartition(".")[2] for target in targets}
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)) if (
                creates_client(value)
            ):
                result.add(name)
    # For example self._http = http.
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Name(id=name)) if name in result:
                result.add(_dotted(target).rpartition(".")[2])
            case ast.FunctionDef(name=name, returns=annotation) if (
                annotation and "AsyncClient" in ast.unparse(annotation)
            ):
                result.add(f"{name}()")
    return result - {""}


def _object_name(node: ast.AST) -> str:
    """Return the last name in the object used for a method call. Brackets are added if the object
    is a call."""
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func).rpartition('.')[2]}()"
    return _dotted(node).rpartition(".")[2]


def _outward(call: ast.Call, clients: set[str]) -> str | None:
    """Return the call if it can leave the process without a deadline, or None."""
    name = _dotted(call.func)
    if name in _CALLS or name.rpartition(".")[2] in _OPENERS:
        return name
    if name == "getattr" and [ast.unparse(arg) for arg in call.args] == ["snmp", "command"]:
        return "snmp"
    object_name = _object_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if object_name in clients and name.rpartition(".")[2] in ("", *_VERBS):
        return ast.unparse(call.func)
    bounded = any(keyword.arg == "timeout" for keyword in call.keywords)
    if name in ("subprocess.run", "subprocess.check_output", "subprocess.call") and not bounded:
        return name
    return None


def outward_calls(source: str) -> Iterator[tuple[str, str]]:
    """Yield ``(function, call)`` for all calls that leave the process without a deadline."""
    tree = ast.parse(source)
    clients = _client_names(tree)

    def within(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            inner = child.name if named else function  # type: ignore[attr-defined]
            match child:
                case ast.Call() if (result := _outward(child, clients)) is not None:
                    yield function, result
                case ast.Import(names=names):
                    yield from ((function, name.name) for name in names if name.name in _LIBRARIES)
                case ast.ImportFrom(module=str(module)) if module in _LIBRARIES:
                    yield function, module
            yield from within(child, inner)

    yield from within(tree, "")


def test_all_outward_calls_have_a_total_deadline() -> None:
    by_name: dict[tuple[str, str], set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            location = path.relative_to(ROOT).as_posix()
            for function, call in outward_calls(path.read_text()):
                by_name.setdefault((location, function), set()).add(call)
    assert {location: calls for location, calls in by_name.items() if location not in OTHERS} == {}
    assert set(OTHERS) - set(by_name) == set(), "these calls no longer exist and should be removed"


@pytest.mark.parametrize(
    "source",
    [
        "import urllib.request",
        "from http.client import HTTPSConnection",
        "async def f():\n  async with httpx.AsyncClient() as c:\n    await c.get(url)",
        "async def f(http: httpx.AsyncClient):\n  async with http.stream('GET', url) as a: pass",
        "class A:\n  http: httpx.AsyncClient\n  async def f(self): await self.http.post(url)",
        "def f() -> httpx.AsyncClient: ...\nasync def g(): await f().request('GET', url)",
        "async def f():\n  c = open_client(None)\n  await c.send(r)",
        "httpx.get(url, timeout=5)",
        "requests.post(url, timeout=5)",
        "subprocess.run(['az', 'login'])",
        "socket.create_connection((host, 80), timeout=5)",
        "async def f(): await asyncio.open_connection(host, 80)",
        "aiohttp.ClientSession()",
    ],
)
def test_call_without_a_deadline_is_detected(source: str) -> None:
    assert list(outward_calls(source))


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n  async with httpx.AsyncClient() as c:\n    await ask(c, 'GET', url, 9)",
        "subprocess.run(['az', 'login'], timeout=9)",
        "{}.get('a')",
    ],
)
def test_call_with_a_deadline_is_allowed(source: str) -> None:
    assert not list(outward_calls(source))
