"""Attacks by hostile servers of keys, tokens, storage, metrics and the API on their clients."""

import asyncio
import importlib.util
import io
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Final
from unittest import mock

from broadside.coordinator.auth.entra import Entra, EntraTrust
from broadside.coordinator.auth.principal import KeysUnavailable
from broadside.coordinator.cli import api_client, main
from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.notices.announcer import NotDelivered, post
from broadside.exchange.azure import wire
from broadside.exchange.azure.blob_storage import BlobAddress, BlobRaw
from broadside.exchange.azure.identity import AzureCredential, NoToken
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.ports import ExchangeError, RawName
from tests.attack import Attack, attack_variants, memory_within, refusal, unfolding
from tests.keyserver import TENANT, KeyServer
from tests.loopback_server import answering

ASKED: Final = "servers that we call"
# Limit for answers of storage and the API, smaller than the real one for speed.
_ANSWER_MAX_BYTES: Final = 8 * 1_048_576
_MEMORY_MAX_BYTES: Final = 64 * 1_048_576
_FETCH: Final = Path(__file__).parents[2] / "deploy/azure/modules/boot/files/fetch.py"


def _endless() -> Iterator[bytes]:
    return itertools.repeat(bytes(1_048_576))


@cache
def _packed() -> bytes:
    """Return a gigabyte packed into a megabyte."""
    return unfolding(1_000, gzip=True)


def _once(body: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([body])


_HEADERS: Final = {
    "Content-Type": "application/json",
    "Content-Range": "bytes 0-9/10",
    "ETag": '"1"',
}
_GZIP: Final = {"Content-Encoding": "gzip"}
_ANSWERS: Final[dict[str, tuple[Callable[[], Iterator[bytes]], Mapping[str, str]]]] = {
    "without end": (_endless, {}),
    "of lines without end": (lambda: itertools.repeat(b"data: x\n" * 100_000), {}),
    "that unfolds": (lambda: iter([_packed()]), _GZIP),
    "of brackets": (_once(b"[" * 100_000), {}),
    "of deep objects": (_once(b'{"a":' * 100_000), {}),
    "of a number of 5,000 digits": (_once(b'{"keys":' + b"9" * 5_000 + b"}"), {}),
    "of nothing": (_once(b""), {}),
    "of text": (_once(b'"x"'), {}),
    "of no UTF-8": (_once(b"\xff\xfe\xff"), {}),
    "that is no gzip": (_once(b"[]"), _GZIP),
}


def _keys(url: str) -> str:
    server = KeyServer()
    trust = EntraTrust(
        tenant_id=TENANT, audiences=["x"], issuers=["x"], jwks_url=f"{url}/keys", leeway_s=0
    )
    requested = Entra(trust).identify(server.token())
    return refusal(KeysUnavailable, lambda: asyncio.run(requested), "somebody is signed in")


def _collector(url: str) -> str:
    try:
        asyncio.run(post(f"{url}/v1/metrics", b"", {}, 5.0))
    except NotDelivered as error:
        return str(error)
    return "only the status is read"


def _token(url: str) -> str:
    async def ask() -> None:
        async with AzureCredential("1234") as credential:
            await credential.get_token("https://storage.azure.com/.default")

    with mock.patch.dict(os.environ, {"AZURE_POD_IDENTITY_AUTHORITY_HOST": url}):
        return refusal(NoToken, lambda: asyncio.run(ask()), "it was taken for a token")


# Key without an account.
_KEY: Final = "AccountName=x;AccountKey=a2V5"


async def _table(url: str) -> str:
    text = f"DefaultEndpointsProtocol=http;{_KEY};TableEndpoint={url}/x"
    table = AzureTable(TableAddress(table="control", connection_string=text))
    try:
        rows = [row async for row in table.scan("p")]
    except ExchangeError as error:
        return str(error)
    finally:
        await table.close()
    assert rows == []
    return "no row"


async def _blob(url: str) -> str:
    text = f"DefaultEndpointsProtocol=http;{_KEY};BlobEndpoint={url}/x"
    raw = BlobRaw(BlobAddress(container="raw", connection_string=text))
    try:
        result = await raw.read(RawName(folder="run", file="x"))
    except ExchangeError as error:
        return str(error)
    finally:
        await raw.close()
    raise AssertionError(f"{len(result or b'')} bytes were taken for an output")


def _command(*words_and_url: str) -> str:
    """Run a command with a hostile API. It should exit with 4 and print one line."""
    *parts, url = words_and_url
    text = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["broadside", *parts, "--api", url]),
        redirect_stdout(io.StringIO()),
        redirect_stderr(text),
    ):
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 4, (ended.code, text.getvalue())
    [line] = text.getvalue().splitlines()
    assert not line.startswith("broadside: unexpected"), line
    return line.replace(url, "URL")


async def _events(url: str) -> str:
    """Read an endless stream of events like `watch` does. An event must have a limit."""
    count = 0
    try:
        async with api_client.connect(url) as coordinator:
            async for _ in coordinator.events("x"):
                count += 1
                assert count < 10, "events without end"
    except ApiError as error:
        return str(error)
    return f"{count} events"


def _fetch(token: str | None, url: str) -> str:
    """Fetch the token of the identity and then the package, like a new VM would do."""
    spec = importlib.util.spec_from_file_location("fetch", _FETCH)
    assert spec is not None and spec.loader is not None
    with tempfile.TemporaryDirectory() as folder:
        settings = {"BROADSIDE_IMDS": url, "BROADSIDE_DOWNLOAD_S": "1"}
        with mock.patch.dict(os.environ, settings):
            fetch: ModuleType = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(fetch)
        fetch.BUNDLE_MAX_BYTES = _ANSWER_MAX_BYTES  # type: ignore[attr-defined]
        if token is not None:
            fetch.token = lambda _: token  # type: ignore[attr-defined]
        bundle = {"url": f"{url}/bundle", "client_id": "x", "sha256": "0" * 64}
        path = Path(folder) / "bundle.tar.gz"
        try:
            fetch.fetch(bundle, path)
        except fetch.AttemptFailed as failed:
            assert not path.exists() or path.stat().st_size <= _ANSWER_MAX_BYTES
            return str(failed).replace(url, "")
    raise AssertionError("it was installed")


def _call_reader(
    ask: Callable[[str], str], pieces: Callable[[], Iterator[bytes]], headers: Mapping[str, str]
) -> str:
    with (
        answering(pieces, {**_HEADERS, **headers}) as url,
        mock.patch.object(wire, "ANSWER_MAX_BYTES", _ANSWER_MAX_BYTES),
        mock.patch.object(api_client, "RESPONSE_MAX_BYTES", _ANSWER_MAX_BYTES),
        mock.patch.object(api_client, "EVENT_MAX_BYTES", _ANSWER_MAX_BYTES),
        memory_within(_MEMORY_MAX_BYTES),
    ):
        return ask(url)


_READERS: Final[dict[str, Callable[[str], str]]] = {
    "Entra's keys": _keys,
    "a collector": _collector,
    "a metadata service": _token,
    "a table": lambda url: asyncio.run(_table(url)),
    "a blob": lambda url: asyncio.run(_blob(url)),
    "--api: runs": partial(_command, "runs"),
    "--api: show": partial(_command, "show", "x"),
    "--api: events": lambda url: asyncio.run(_events(url)),
    "fetch.py, a token": partial(_fetch, None),
    "fetch.py, a package": partial(_fetch, "x"),
}
ATTACKS: Final[tuple[Attack, ...]] = tuple(
    attack
    for reader, ask in _READERS.items()
    for attack in attack_variants(
        f"{reader}: an answer {{}}", ASKED, "memory, a crash", partial(_call_reader, ask), _ANSWERS
    )
)
