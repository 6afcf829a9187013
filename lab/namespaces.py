"""Network namespaces on this host, with functions to enter them and to find their processes.

A namespace belongs to a thread. Only the calling thread enters it, and leaves it when the socket or
process inside has been created.
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

# sched.h
CLONE_NEWNET: Final = 0x4000_0000
# This is the folder used by iproute2.
NAMESPACES_PATH: Final = Path("/var/run/netns")
CHRONY_PATH: Final = Path("/run/chrony")
PROC: Final = Path("/proc")
COMMAND_TIMEOUT_S: Final = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace permanently, for example in a forked child.

    Raises:
        LabBroken: The namespace does not exist or cannot be entered.
        NoRights: This process has no permission.
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
    """Enter a namespace for a ``with`` block, only in this thread. ``None`` does nothing."""
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
    """Run a program in a namespace.

    Args:
        argv: Program and arguments.
        namespace: Namespace to use, or ``None`` for the current one.
        text: Text to pass to standard input.
        lock: Descriptor to pass on, so that a lock is released only when the program has ended.
            None passes none.

    Returns:
        Standard output as text.

    Raises:
        LabBroken: The program failed. The message has its output.
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
        parts = " ".join((done.stderr or done.stdout).split())[:300]
        place = f" in {namespace}" if namespace else ""
        raise LabBroken(f"{' '.join(argv)}{place}: {parts or f'exit code {done.returncode}'}")
    return done.stdout


def detach(argv: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
    """Start a program in a new session that continues to run after this process.

    It runs in the namespace of the calling thread.

    Args:
        argv: Program and arguments.
        pass_fds: Descriptors to pass on.

    Raises:
        LabBroken: The program did not start.
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
    """Run a batch of commands.

    Args:
        batch: Commands to run.
        lock: Descriptor to pass on (see :func:`run`). None passes none.

    Raises:
        LabBroken: A command failed.
        ToolMissing: The program is not installed.
    """
    flag = "-f" if batch.tool == "nft" else "-batch"
    argv = [find_tool(batch.tool), flag, "-"]
    run(argv, namespace=batch.namespace, text="\n".join(batch.lines) + "\n", lock=lock)


def run_ip(namespace: str | None, *lines: str) -> None:
    """Run lines of ``ip`` in a namespace.

    Args:
        namespace: Namespace to use, or None for the current one.
        *lines: Lines in the format of ``ip -batch``.

    Raises:
        LabBroken: A command failed.
        ToolMissing: The program is not installed.
    """
    run_batch(Batch(namespace=namespace, tool="ip", lines=lines))


def write_sysctls(namespace: str, values: Mapping[str, str]) -> None:
    """Write settings below ``/proc/sys/net`` for a namespace.

    Settings for IPv6 are skipped when the kernel does not support IPv6.

    Args:
        namespace: Namespace to use.
        values: Values by path.

    Raises:
        LabBroken: A setting cannot be written.
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
    """Return the names in use by labs with this prefix, with the inode of each namespace.

    The inode is ``None`` when there is a name without a namespace, after an ``ip netns add`` that
    was interrupted.
    """
    kernel_device = (PROC / "self/ns/net").stat().st_dev
    by_name: dict[str, int | None] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in NAMESPACES_PATH.iterdir():
            if belongs(entry.name, prefix):
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    by_name[entry.name] = stat.st_ino if stat.st_dev == kernel_device else None
    return by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceProcess:
    """A running process.

    Attributes:
        pid: Process id.
        arguments: Command line.
        namespace_inode: Inode of its network namespace.
    """

    pid: int
    arguments: tuple[str, ...]
    namespace_inode: int

    @property
    def command(self) -> str:
        """Return the command line as text."""
        return " ".join(self.arguments)


def list_processes() -> Iterator[NamespaceProcess]:
    """Yield every process with a readable namespace. Zombies have none."""
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            # The process has ended, or we are not allowed to see it.
            with contextlib.suppress(OSError):
                cmdline = (folder / "cmdline").read_text(errors="replace")
                yield NamespaceProcess(
                    pid=int(folder.name),
                    arguments=tuple(cmdline.split("\0")[:-1]),
                    namespace_inode=(folder / "ns/net").stat().st_ino,
                )


def module_argv(module: str, prefix: str) -> list[str]:
    """Return the command to run a module, with the prefix as a mark to find the process later.

    Args:
        module: Module to run.
        prefix: Prefix of the lab.
    """
    return module_command(module, f"--broadside-lab={prefix}")


def is_module(process: NamespaceProcess, module: str, prefix: str) -> bool:
    """Return True if a process was started with the command from :func:`module_argv`.

    Args:
        process: Process to check.
        module: Module name.
        prefix: Prefix of the lab.
    """
    local = tuple(module_argv(module, prefix)[1:])
    return process.arguments[1 : 1 + len(local)] == local


def pid_path(prefix: str, host_name: str) -> Path:
    """Return the path where a host's chronyd writes its process id.

    It is not in the lab's folder, because AppArmor on Debian and Ubuntu restricts chronyd to
    ``/run/chrony``.

    Args:
        prefix: Prefix of the lab.
        host_name: Name of the host.
    """
    return CHRONY_PATH / f"broadside-{prefix}-{host_name}.pid"


def is_chronyd(process: NamespaceProcess, prefix: str) -> bool:
    """Return True if a process is a chronyd of this lab.

    A running chronyd splits its arguments in place, so this function uses the whole command line.

    Args:
        process: Process to check.
        prefix: Prefix of the lab.
    """
    pid_file = str(pid_path(prefix, "")).removesuffix(".pid")
    return Path(process.command.partition(" ")[0]).name == "chronyd" and pid_file in process.command


def list_owned(prefix: str) -> list[NamespaceProcess]:
    """Return all processes of a lab, including its byte counter, clocks and fleets.

    The namespace of a byte counter or chronyd belongs to the lab, even when its name was removed.
    The namespace of this process or of the host is never included.
    """
    processes = list(list_processes())
    ours = {inode for inode in list_namespaces(prefix).values() if inode is not None}
    ours |= {
        process.namespace_inode
        for process in processes
        if is_module(process, "broadside.lab.byte_counter", prefix) or is_chronyd(process, prefix)
    }
    everybodys = {p.namespace_inode for p in processes if p.pid in (1, os.getpid())}
    return [
        process
        for process in processes
        if process.pid != os.getpid()
        and (
            process.namespace_inode in ours - everybodys
            or is_module(process, "broadside.lab.byte_counter", prefix)
            or is_module(process, "broadside.lab.fleet", prefix)
            or is_chronyd(process, prefix)
        )
    ]
