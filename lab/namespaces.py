"""Network namespaces of this machine: enter one, run a command or write a setting in it, find
the processes that live there.

A namespace is a thread's: what is entered here is entered by the calling thread alone, and left
again as soon as the socket or process that is to live there has been made.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.programs import module_command
from broadside.lab.errors import LabBroken, NoRights
from broadside.lab.lab_programs import find_tool
from broadside.lab.topology import Batch, belongs

CLONE_NEWNET: Final = 0x4000_0000  # sched.h
NAMESPACES_PATH: Final = Path("/var/run/netns")  # where iproute2 keeps them
CHRONY_PATH: Final = Path("/run/chrony")
PROC: Final = Path("/proc")
COMMAND_TIMEOUT_S: Final = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace for good, such as that of a child just forked.

    Raises :class:`LabBroken` when there is none, :class:`NoRights`.
    """
    try:
        descriptor = os.open(NAMESPACES_PATH / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabBroken(f"namespace {namespace}: {error.strerror}; is the lab up?") from error
    try:
        _setns(descriptor)
    except PermissionError as error:
        raise NoRights(f"namespace {namespace}: not permitted; run this with sudo") from error
    except OSError as error:
        raise LabBroken(f"namespace {namespace}: {error.strerror}; run lab up again") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Be in a namespace for a while; only this thread is. ``None`` stays where it is."""
    if namespace is None:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def _setns(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def run(
    argv: list[str], *, namespace: str | None = None, text: str = "", lock: int | None = None
) -> str:
    """Run a program in a namespace and return what it printed.

    ``lock`` is a descriptor that the program inherits, so that a lock outlives a killed caller
    until its last command has ended. Raises :class:`LabBroken` with the program's own words.
    """
    try:
        with inside(namespace):
            done = subprocess.run(
                argv,
                input=text,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                pass_fds=() if lock is None else (lock,),
            )
    except subprocess.TimeoutExpired as error:
        raise LabBroken(f"{argv[0]}: no answer within {COMMAND_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[:300]
        where = f" in {namespace}" if namespace else ""
        raise LabBroken(f"{' '.join(argv)}{where}: {words or f'exit code {done.returncode}'}")
    return done.stdout


def detach(argv: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
    """Start a program that outlives us, in the calling thread's namespace and a session of its own.

    Raises :class:`LabBroken`.
    """
    try:
        subprocess.run(
            [find_tool("setsid"), "--fork", *argv],
            check=True,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.SubprocessError as error:
        raise LabBroken(f"{argv[0]}: {error}") from error


def run_batch(batch: Batch, lock: int | None = None) -> None:
    """Run one batch. Raises :class:`LabBroken`, :class:`broadside.lab.errors.ToolMissing`."""
    flag = "-f" if batch.tool == "nft" else "-batch"
    argv = [find_tool(batch.tool), flag, "-"]
    run(argv, namespace=batch.namespace, text="\n".join(batch.lines) + "\n", lock=lock)


def run_ip(namespace: str | None, *lines: str) -> None:
    """Run lines of ``ip`` in a namespace. Raises as :func:`run_batch`."""
    run_batch(Batch(namespace=namespace, tool="ip", lines=lines))


def write_sysctls(namespace: str, values: Mapping[str, str]) -> None:
    """Write settings below ``/proc/sys/net``, which shows the namespace of the calling thread.

    A kernel without IPv6 lacks its settings, and needs none. Raises :class:`LabBroken`.
    """
    with inside(namespace):
        for name, value in values.items():
            try:
                (PROC / "sys/net" / name).write_text(value)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and name.startswith("ipv6/"):
                    continue
                raise LabBroken(
                    f"sysctl net.{name.replace('/', '.')}={value} in {namespace}: {error.strerror}"
                ) from error


def list_namespaces(prefix: str) -> dict[str, int | None]:
    """The names a lab of this prefix has taken, each with its namespace's inode number.

    ``None`` is a name without a namespace behind it, left by an ``ip netns add`` cut short.
    """
    kernel_device = (PROC / "self/ns/net").stat().st_dev
    found: dict[str, int | None] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in NAMESPACES_PATH.iterdir():
            if belongs(entry.name, prefix):
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    found[entry.name] = stat.st_ino if stat.st_dev == kernel_device else None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceProcess:
    """A live process, as far as the lab needs to know it."""

    pid: int
    arguments: tuple[str, ...]
    namespace_inode: int

    @property
    def command(self) -> str:
        """The arguments as one line, to show."""
        return " ".join(self.arguments)


def list_processes() -> Iterator[NamespaceProcess]:
    """Every process whose namespace we may see. Zombies have none, so they do not show."""
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended while we looked, or is not ours
                cmdline = (folder / "cmdline").read_text(errors="replace")
                yield NamespaceProcess(
                    pid=int(folder.name),
                    arguments=tuple(cmdline.split("\0")[:-1]),
                    namespace_inode=(folder / "ns/net").stat().st_ino,
                )


def module_argv(module: str, prefix: str) -> list[str]:
    """How a process of the lab is started, by which it is found again wherever it lives."""
    return module_command(module, f"--broadside-lab={prefix}")


def is_module(process: NamespaceProcess, module: str, prefix: str) -> bool:
    """Whether it was started by :func:`module_argv`."""
    own = tuple(module_argv(module, prefix)[1:])
    return process.arguments[1 : 1 + len(own)] == own


def pid_path(prefix: str, host_name: str) -> Path:
    """Where chronyd of one host writes its process id.

    Not in the lab's folder: Debian and Ubuntu confine chronyd by AppArmor to ``/run/chrony``.
    """
    return CHRONY_PATH / f"broadside-{prefix}-{host_name}.pid"


def is_chronyd(process: NamespaceProcess, prefix: str) -> bool:
    """Whether it is a chronyd of this lab. It splits its directives in place, once it runs."""
    pid_file = str(pid_path(prefix, "")).removesuffix(".pid")
    return Path(process.command.partition(" ")[0]).name == "chronyd" and pid_file in process.command


def list_owned(prefix: str) -> list[NamespaceProcess]:
    """The processes of a lab: those in its namespaces, its ledger and clocks, its fleets.

    The ledger and the clocks vouch for the namespace they are in, whose name may be gone; never
    for our own or the machine's.
    """
    processes = list(list_processes())
    ours = {inode for inode in list_namespaces(prefix).values() if inode is not None}
    ours |= {
        process.namespace_inode
        for process in processes
        if is_module(process, "broadside.lab.ledger", prefix) or is_chronyd(process, prefix)
    }
    everybodys = {p.namespace_inode for p in processes if p.pid in (1, os.getpid())}
    return [
        process
        for process in processes
        if process.pid != os.getpid()
        and (
            process.namespace_inode in ours - everybodys
            or is_module(process, "broadside.lab.ledger", prefix)
            or is_module(process, "broadside.lab.fleet", prefix)
            or is_chronyd(process, prefix)
        )
    ]
