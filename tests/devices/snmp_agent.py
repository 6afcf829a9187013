"""Runs a real snmpd in a namespace, with planted values of a device."""

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broadside.lab.child_processes import die_with_parent
from broadside.lab.errors import LabBroken
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import inside
from broadside.lab.telemetry_file import source_entry
from tests.devices import snmp_extension

FORTINET: Final = "1.3.6.1.4.1.12356.101"
# OIDs in the profile `fortinet`.
CPU, MEMORY, SESSIONS = (f"{FORTINET}.4.1.{n}.0" for n in (3, 4, 8))
# ifDescr
DESCRIPTION: Final = "1.3.6.1.2.1.2.2.1.2"
# ifInOctets
NARROW_IN: Final = "1.3.6.1.2.1.2.2.1.10"
# If the host is busy, it can take seconds to start Python.
READY_S: Final = 30.0
ASK_S: Final = 1.0
STOP_S: Final = 5.0
USER: Final = "broadside"
Figures = Mapping[str, Mapping[str, Any]]


def gauge(*points: tuple[float, float]) -> dict[str, Any]:
    """Return a gauge from points of epoch seconds and value. The last point in the past is used."""
    return {"type": "gauge", "points": [list(point) for point in points]}


def interface32(name: str, index: int, rate: float, *, from_s: float, start: float) -> Figures:
    """Return the IF-MIB of an interface with only 32-bit counters and an unknown speed.

    Args:
        name: Name of the interface.
        index: Interface index.
        rate: Rate in bytes per second.
        from_s: Start of the counter in epoch seconds.
        start: First value of the counter.
    """
    return {
        f"{DESCRIPTION}.{index}": {"type": "string", "text": name},
        f"{NARROW_IN}.{index}": {
            "type": "counter",
            "rate": rate,
            "from_s": from_s,
            "start": start,
            "turn": 2**32,
        },
    }


@dataclass(slots=True)
class SnmpAgent:
    """Local snmpd process with planted values.

    Use ``plant`` to change its values, and ``stop`` to simulate a dead agent.

    Attributes:
        folder: Folder for its files.
        address: Address to listen on.
        port: Port to listen on. Use 0 for a free port in the current namespace.
        namespace: Namespace to run in, or ``None`` for the current one.
        figures: Planted values by OID.
        community: Community for SNMP v2c.
        auth_key: Authentication key for SNMP v3.
        privacy_key: Privacy key for SNMP v3.
        v3_names: Authentication and privacy protocol for SNMP v3, with the names that snmpd uses.
    """

    folder: Path
    address: str = "127.0.0.1"
    port: int = 0
    namespace: str | None = None
    figures: Figures = field(default_factory=dict)
    community: str = field(default_factory=lambda: secrets.token_hex(8))
    auth_key: str = field(default_factory=lambda: secrets.token_hex(12))
    privacy_key: str = field(default_factory=lambda: secrets.token_hex(12))
    v3_names: tuple[str, str] = ("SHA-256", "AES")
    _process: "subprocess.Popen[bytes] | None" = None

    def plant(self, figures: Figures) -> None:
        """Replace the planted values, starting with the next request."""
        self.figures = figures
        path = self.folder / "figures.json"
        path.with_suffix(".new").write_text(json.dumps(figures))
        path.with_suffix(".new").replace(path)

    def start(self) -> None:
        """Start snmpd and wait until it responds. Raises LabBroken or ToolMissing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.port:
            self.port = _free_udp_port(self.address)
        self.plant(self.figures)
        config = self.folder / "snmpd.conf"
        config.write_text("\n".join([*self._directives(), ""]))
        config.chmod(0o600)
        argv = [
            find_tool("snmpd"),
            # We should not report the counters from the kernel.
            *(["-I", "-ifTable"] if self._plants_interfaces else []),
            *("-f", "-C", "-c", str(config), "-Lf", str(self.folder / "snmpd.log")),
            f"udp:{self.address}:{self.port}",
        ]
        with inside(self.namespace):
            self._process = subprocess.Popen(
                argv,
                env={"SNMP_PERSISTENT_DIR": str(self.folder / "kept"), "PATH": "/usr/bin:/bin"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
        end_s = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end_s:
                log = (self.folder / "snmpd.log").read_text(errors="replace")[-500:]
                raise LabBroken(f"snmpd of {self.address}:{self.port} does not start: {log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop snmpd and its child processes."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def entry(self, device: str, **fields: Any) -> str:
        """Return a table for the telemetry file, and write the secrets to files beside it.

        Args:
            device: Name of the device.
            **fields: More fields, or other values for the default ones.
        """
        for name, secret in (
            ("community", self.community),
            ("auth", self.auth_key),
            ("privacy", self.privacy_key),
        ):
            path = self.folder / name
            path.write_text(secret)
            path.chmod(0o600)
        by_name: dict[str, Any] = {
            "device": device,
            "type": "snmp",
            "address": f"{self.address}:{self.port}",
            "poll_s": 1.0,
            **fields,
        }
        if by_name.get("version") == "3":
            by_name |= {
                "user": USER,
                "auth_key": {"file": str(self.folder / "auth")},
                "privacy_key": {"file": str(self.folder / "privacy")},
            }
        else:
            by_name["community"] = {"file": str(self.folder / "community")}
        return source_entry(by_name)

    def _directives(self) -> Sequence[str]:
        extension = (
            f"{sys.executable} -P -S {snmp_extension.__file__} {self.folder / 'figures.json'}"
        )
        auth, privacy = self.v3_names
        return (
            f"rocommunity {self.community}",
            f"createUser {USER} {auth} {self.auth_key} {privacy} {self.privacy_key}",
            f"rouser {USER} priv",
            # By default, a removed interface is reported for 300 s.
            "interface_fadeout 0",
            "interface_replace_old yes",
            *(f"pass_persist -p 100 .{tree} {extension}" for tree in self._trees),
        )

    @property
    def _trees(self) -> Sequence[str]:
        return sorted({FORTINET, *(oid.rpartition(".")[0] for oid in self.figures)})

    @property
    def _plants_interfaces(self) -> bool:
        return any(oid.startswith(NARROW_IN) for oid in self.figures)

    def _answers(self) -> bool:
        """Return True if snmpd responds for each tree.

        It starts the extension of a tree on the first request for it.
        """
        with inside(self.namespace):
            return all(self._answers_of(tree) for tree in self._trees)

    def _answers_of(self, tree: str) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(ASK_S)
            asking.connect((self.address, self.port))
            try:
                asking.send(_get_next(self.community, tree))
                return bool(asking.recv(65_536))
            # We should try again, because snmpd is not listening yet.
            except OSError:
                return False


def _get_next(community: str, oid: str) -> bytes:
    """Return a GetNext request in BER for SNMPv2c (RFC 3416, section 3), under 128 bytes."""

    def encode(tag: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return bytes([tag, len(body)]) + body

    first, second, *rest = map(int, oid.split("."))
    name = bytes([40 * first + second])
    for number in rest:
        sevens = [number >> shift & 0x7F for shift in range(28, -1, -7)]
        while len(sevens) > 1 and not sevens[0]:
            del sevens[0]
        name += bytes([seven | 0x80 for seven in sevens[:-1]] + sevens[-1:])
    binding = encode(0x30, encode(0x06, name), encode(0x05))
    zero = encode(0x02, b"\0")
    pdu = encode(0xA1, zero, zero, zero, encode(0x30, binding))
    return encode(0x30, encode(0x02, b"\1"), encode(0x04, community.encode()), pdu)


def _free_udp_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((address, 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def answering(*agents: SnmpAgent) -> Iterator[Sequence[SnmpAgent]]:
    """Start agents and stop them on exit."""
    with contextlib.ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.stop)
            agent.start()
        yield agents
