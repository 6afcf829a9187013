"""Every call that leaves the process has a total deadline, in seconds and bytes.

A client of HTTP is asked by ``exchange.http.bounded.ask`` alone, which has both. Whatever goes
another way is in :data:`OTHERS` with what bounds it.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "coordinator", "exchange")  # the lab talks to itself

OTHERS: Final[Mapping[tuple[str, str], str]] = {  # file and function: what bounds it
    ("exchange/http/bounded.py", "ask"): "it is the one",
    (
        "exchange/http/coordinator_client.py",
        "_read_stream",
    ): "a stream without end, dead by silence",
    ("coordinator/cli/api_client.py", "events"): "a stream without end, of a run that is watched",
    ("exchange/azure/bounded_transport.py", "open"): "wire.py: a timeout round each call",
    ("agent/idle_rtt.py", "handshake_rtts"): "a timeout round each connection, nothing is read",
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
_CALLS: Final = frozenset(  # of modules: what opens a connection or sends by itself
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
    """``a.b.c`` of names and attributes; empty where it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _client_names(tree: ast.AST) -> set[str]:
    """Names and attributes that hold a client: annotated so, or made by what makes one."""

    def makes(node: ast.AST | None) -> bool:
        return isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in _CLIENTS

    result: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=said) if said and "AsyncClient" in ast.unparse(said):
                result.add(name)
            case ast.AnnAssign() if "AsyncClient" in ast.unparse(node.annotation):
                result.add(_dotted(node.target).rpartition(".")[2])
            case ast.Assign(targets=targets, value=value) if makes(value):
                result |= {_dotted(target).rpartition(".")[2] for target in targets}
            case ast.withitem(context_expr=made, optional_vars=ast.Name(id=name)) if makes(made):
                result.add(name)
    for node in ast.walk(tree):  # self._http = http
        match node:
            case ast.Assign(targets=[target], value=ast.Name(id=name)) if name in result:
                result.add(_dotted(target).rpartition(".")[2])
            case ast.FunctionDef(name=name, returns=said) if said and "AsyncClient" in ast.unparse(
                said
            ):
                result.add(f"{name}()")
    return result - {""}


def _holder(node: ast.AST) -> str:
    """The last name of what a method is called of; with brackets where that is called too."""
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func).rpartition('.')[2]}()"
    return _dotted(node).rpartition(".")[2]


def _outward(call: ast.Call, clients: set[str]) -> str | None:
    """What of a call leaves the process without a deadline; None: nothing does."""
    name = _dotted(call.func)
    if name in _CALLS or name.rpartition(".")[2] in _OPENERS:
        return name
    if name == "getattr" and [ast.unparse(arg) for arg in call.args] == ["snmp", "command"]:
        return "snmp"
    holder = _holder(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if holder in clients and name.rpartition(".")[2] in ("", *_VERBS):
        return ast.unparse(call.func)
    bounded = any(keyword.arg == "timeout" for keyword in call.keywords)
    if name in ("subprocess.run", "subprocess.check_output", "subprocess.call") and not bounded:
        return name
    return None


def outward_calls(source: str) -> Iterator[tuple[str, str]]:
    """``(function, call)`` of each call that leaves the process without a deadline."""
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


def test_every_outward_call_has_a_total_deadline() -> None:
    by_name: dict[tuple[str, str], set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            location = path.relative_to(ROOT).as_posix()
            for function, call in outward_calls(path.read_text()):
                by_name.setdefault((location, function), set()).add(call)
    assert {place: calls for place, calls in by_name.items() if place not in OTHERS} == {}
    assert set(OTHERS) - set(by_name) == set(), "there no more: remove"


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
def test_a_call_without_one_is_found(source: str) -> None:
    assert list(outward_calls(source))


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n  async with httpx.AsyncClient() as c:\n    await ask(c, 'GET', url, 9)",
        "subprocess.run(['az', 'login'], timeout=9)",
        "{}.get('a')",
    ],
)
def test_a_call_with_one_is_not(source: str) -> None:
    assert not list(outward_calls(source))
