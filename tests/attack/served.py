"""Attacks by strangers on a server agent's services, over the network with a real vsftpd."""

import atexit
import contextlib
import ftplib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

from broadside.agent.engine_process import least_privileged
from broadside.agent.gate import find_bodies
from broadside.agent.workspace import Workspace
from broadside.exchange.engines import engines
from broadside.exchange.engines.port import DaemonReader, ServerRequest, Tool
from broadside.exchange.programs import program_environment, program_path
from tests.attack import Attack, attack_variants, refusal

SERVED: Final = "stranger to served port"
NO_SERVER: Final = "not tried: no vsftpd here"
_WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Running vsftpd as an agent starts it, and a foreign file beside it."""

    port: int
    folder: Path
    secret: Path

    def open(self, password: str = "") -> ftplib.FTP:
        ftp = ftplib.FTP(timeout=10)  # noqa: S321 - what is attacked
        ftp.connect("127.0.0.1", self.port)
        ftp.login("anonymous", password)
        return ftp


@cache
def served() -> Served | None:
    """Start vsftpd once, or return None if it is not installed."""
    program = program_path("vsftpd")
    if program is None:
        return None
    stack = ExitStack()
    atexit.register(stack.close)
    workspace = Workspace("attacked")
    stack.callback(workspace.close)
    secret = Path(stack.enter_context(tempfile.TemporaryDirectory()), "credential.json")
    secret.write_text("a secret")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = engines()["ftp"].server(
        ServerRequest(
            port=port,
            address="127.0.0.1",
            tools={"vsftpd": Tool(argv=(program,), version="3.0.3")},
            folder=str(workspace.path),
            duration_max_s=60,
            bodies=find_bodies(),
        )
    )
    workspace.give_to(least_privileged(program))
    workspace.fill(launch.files)
    identity, process = workspace.identity, launch.processes[0]
    started = subprocess.Popen(
        process.argv,
        env=program_environment() | dict(process.env),
        user=None if identity is None else identity.user_id,
        group=None if identity is None else identity.group_id,
        extra_groups=None if identity is None else [],
    )
    stack.callback(started.wait)
    stack.callback(started.kill)
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s and started.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Served(port=port, folder=workspace.path, secret=secret)
        time.sleep(0.05)
    raise AssertionError("vsftpd does not listen")


def _read(path: Callable[[Served], str]) -> str:
    """Request another user's file using several names."""
    if (there := served()) is None:
        return NO_SERVER
    named = path(there)
    with there.open() as ftp:
        return refusal(
            ftplib.error_perm,
            lambda: ftp.retrbinary(f"RETR {named}", _fail_on_data),
            f"{named} was sent",
        )


def _fail_on_data(part: bytes) -> None:
    raise AssertionError(repr(part[:80]))


def _command(*commands: str) -> str:
    if (there := served()) is None:
        return NO_SERVER
    with there.open() as ftp:
        return refusal(
            ftplib.error_perm,
            lambda: [ftp.sendcmd(command) for command in commands],
            f"{commands[-1]} was done",
        )


def _forged_transfer() -> str:
    """Use names and a password that look like transfers in the log."""
    if (there := served()) is None:
        return NO_SERVER
    reader, token = engines()["ftp"].server_reader(), "smoke-1.00000.00003.35"
    forged = '1000", 999999999999 bytes, 1.00Kbyte/sec'
    line = f'OK DOWNLOAD: Client "10.9.9.9", "/f/{forged}'
    with there.open(token) as ftp:
        for name in (forged, line, f"1\x00\n{line}", f"1\r{line}"):
            with contextlib.suppress(ftplib.Error, ValueError):
                ftp.retrbinary(f"RETR {name}", lambda _: None)
    for user, password in (("anonymous", line), (line, token)):
        with ftplib.FTP(timeout=10) as ftp, contextlib.suppress(ftplib.Error):  # noqa: S321
            ftp.connect("127.0.0.1", there.port)
            ftp.login(user, password)
    with there.open(token) as ftp:
        ftp.retrbinary("RETR 1000", lambda _: None)
    log, until_s = there.folder / "log", time.monotonic() + _WAIT_S
    while '/1000", 1000 bytes' not in log.read_text() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert "999999999999 bytes" in log.read_text()
    reader.sample("log", log.read_text(), time.time())
    reported = [test.finish().report for test in cast(DaemonReader, reader).tests.values()]
    assert [total.sent_bytes for report in reported for total in report.totals] == [1000], reported
    return "the log holds them; one transfer of 1000 bytes is read"


_PATHS: Final[dict[str, Callable[[Served], str]]] = {
    "by its path": lambda there: str(there.secret),
    "from the folder up": lambda there: f"../../{there.secret.relative_to('/tmp')}",  # noqa: S108
    "an engine's own settings": lambda _: "../vsftpd.conf",
    "its environment": lambda _: "/proc/self/environ",
    "from its working folder": lambda _: "/proc/self/cwd/../vsftpd.conf",
    "the users": lambda _: "/etc/passwd",
    "from home": lambda _: "~root/.ssh/id_rsa",
    "a device": lambda _: "/dev/zero",
    "the folder itself": lambda _: "..",
}
_COMMANDS: Final = {
    "to another folder": ("CWD /",),
    "a folder up": ("CDUP",),
    "a list": ("PASV", "LIST /"),
    "names": ("PASV", "NLST ../.."),
    "a file's state": ("STAT /etc",),
    "an upload": ("PASV", "STOR x"),
    "a replaced file": ("PASV", "STOR 1000"),
    "an appended line": ("PASV", "APPE 1000"),
    "a removed file": ("DELE 1000",),
    "another name": ("RNFR 1000",),
    "other rights": ("SITE CHMOD 777 1000",),
    "another's port (FTP bounce)": ("PORT 127,0,0,1,0,22",),
    "the same over IPv6": ("EPRT |1|127.0.0.1|22|",),
}

ATTACKS: Final = (
    *attack_variants("FTP: a file {}", SERVED, "another's file", _read, _PATHS),
    *attack_variants("FTP: {}", SERVED, lambda *commands: "; ".join(commands), _command, _COMMANDS),
    Attack("FTP: transfers in a log", SERVED, "bytes that were not sent", _forged_transfer),
)
