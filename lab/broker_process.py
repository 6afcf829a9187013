"""Runs the broker as a process that can be killed, restarted and asked to simulate faults."""

import json
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broadside.exchange.programs import module_command
from broadside.lab.child_processes import die_with_parent
from broadside.lab.servicebus.queues import QueueSettings

POLICY = "RootManageSharedAccessKey"


class BrokerProcess:
    """Broker process with keys, state and admin socket in a folder.

    After a kill and restart it uses the same port and continues from its journal. You need to
    remove the folder.

    Attributes:
        host: Address to listen on.
        port: Port to connect to, 0 before the start.
    """

    def __init__(  # noqa: PLR0913
        self,
        folder: Path,
        queues: Mapping[str, QueueSettings],
        *,
        host: str = "127.0.0.1",
        sas_key: str | None = None,
        jwt_key: str | None = None,
        # Paths to the certificate chain and the key (PEM).
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.host = host
        self.port = 0
        self._sas_key = sas_key
        self._admin = folder / "admin.sock"
        self._process: subprocess.Popen[str] | None = None
        self._options = [f"--host={host}", f"--admin={self._admin}", f"--state={folder}/journal"]
        for path, settings in queues.items():
            self._options.append(f"--queue={path}:{json.dumps(asdict(settings))}")
        for name, key in (("sas", sas_key), ("jwt", jwt_key)):
            if key is not None:
                (folder / f"{name}.key").write_text(key)
                self._options.append(f"--{name}-key-file={folder}/{name}.key")
        if tls:
            self._options += [f"--tls-cert={tls[0]}", f"--tls-key={tls[1]}"]

    def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            RuntimeError: The process did not start. The reason is on stderr.
        """
        self._admin.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            module_command("broadside.lab.servicebus", f"--port={self.port}", *self._options),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdout is not None  # noqa: S101 - narrows the type
        ready = self._process.stdout.readline()
        if not ready:
            self.stop()
            raise RuntimeError("the lab's Service Bus broker did not start; see its stderr")
        self.port = json.loads(ready)["port"]

    def kill(self) -> None:
        """Kill the process to simulate a crash."""
        if self._process:
            self._process.kill()
            self.stop()

    def revive(self) -> None:
        """Start the process again when it has ended."""
        if self._process is None:
            self.start()

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.communicate(timeout=10)
            self._process = None

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request to the admin socket, such as ``ask("busy", for_s=5)``.

        Args:
            do: Name of the request.
            **arguments: Its arguments.

        Returns:
            The response, as parsed JSON.

        Raises:
            ValueError: The request failed.
        """
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self._admin))
            admin.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            answer = json.loads(admin.makefile().readline())
        if "error" in answer:
            raise ValueError(f"{do}: {answer['error']}")
        return answer

    @property
    def connection_string(self) -> str:
        """Return a connection string for plain AMQP.

        The SDK only uses plain AMQP for a development emulator.
        """
        return (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName={POLICY};"
            f"SharedAccessKey={self._sas_key or 'none'};UseDevelopmentEmulator=true"
        )
