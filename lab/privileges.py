"""Detects permissions to build a lab, and creates a user namespace when not running as root.

A user without root access can be root in a *world*. This is a new user, mount, network and process
namespace with its own ``/run`` and ``/proc``. A lab in it needs no other permissions and cannot
outlive it. When the first process of the world ends, the kernel will end all others. There is no
network connection between the world and the host.

- :func:`run_inside` executes a program in a new world that ends with it, for ``demo``.
- :func:`hold` creates a persistent world, :func:`join` executes a program in it, and
  :func:`release` ends it, for ``lab up`` and later commands.

``python -m broadside.lab.privileges`` is run as a new process for this, because only a
single-threaded process can change its user namespace. It does not need ``unshare`` or ``nsenter``.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn

from broadside.exchange.programs import SYSTEM_FOLDERS, module_command
from broadside.lab.errors import LabBroken, LabError, NoRights
from broadside.lab.lab_programs import find_tool

# sched.h
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
# sys/mount.h
MS_NOSUID_NODEV: Final = 0x2 | 0x4
MS_REC_PRIVATE: Final = 0x4000 | 0x4_0000
# linux/prctl.h
PR_SET_PDEATHSIG: Final = 1
# Used to find the first process of a world.
MODULE: Final = "broadside.lab.privileges"
PROBE_TIMEOUT_S: Final = 20.0
# Set for all processes in a world.
INSIDE: Final = "BROADSIDE_LAB_INSIDE"
# Settings that forbid user namespaces on some systems, with the value that forbids and the value
# that allows them.
SWITCHES: Final = (
    # Debian before 11
    ("kernel.unprivileged_userns_clone", "0", "1"),
    # Ubuntu from 23.10
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "10000"),
)
FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_libc = ctypes.CDLL(None, use_errno=True)


class Rights(StrEnum):
    """Permission of this process to build a lab.

    Attributes:
        ROOT: The lab can be built directly.
        USER_NAMESPACE: The lab can be built in a new world.
        NONE: The lab cannot be built.
    """

    ROOT = "root"
    USER_NAMESPACE = "user namespace"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivilegeCheck:
    """Result of a test for permissions.

    Attributes:
        rights: The permission.
        reason: A line with cause and fix when there is no permission, or ``None``.
    """

    rights: Rights
    reason: str | None = None

    def require(self) -> "PrivilegeCheck":
        """Return this object if there is permission.

        Raises:
            NoRights: There is no permission. The message has the fix.
        """
        if self.rights is Rights.NONE:
            raise NoRights(self.reason)
        return self


def find_rights() -> PrivilegeCheck:
    """Try to create a network namespace, first directly and then in a new world.

    This takes about 0.1 s.
    """
    as_we_are = _try(["probe"])
    if as_we_are is None:
        return PrivilegeCheck(rights=Rights.ROOT)
    in_a_world = _try(["inside", "--", sys.executable, "-P", "-c", ""])
    if in_a_world is None:
        return PrivilegeCheck(rights=Rights.USER_NAMESPACE)
    return PrivilegeCheck(
        rights=Rights.NONE,
        reason=f"no permission to build network namespaces (as this user: {as_we_are}; in a user "
        f"namespace: {in_a_world}); {fix()}",
    )


def fix() -> str:
    """Return the fix to show, which is a sysctl command or the use of more permissions."""
    for name, forbids, allows in SWITCHES:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbids:
                return f"run `sudo sysctl -w {name}={allows}`, or run this command with sudo"
    # Root without this permission is root in a container.
    if os.geteuid() == 0:
        return "give this container CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
    return "run this command with sudo"


def _argv(arguments: list[str]) -> list[str]:
    return module_command(MODULE, *arguments)


def _try(arguments: list[str]) -> str | None:
    """Return ``None`` on success, or the last line of the output."""
    try:
        done = subprocess.run(
            _argv(arguments), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


# Worlds -----------------------------------------------------------------------------------------


def run_inside(argv: list[str]) -> NoReturn:
    """Replace this process with a program in a new world, with the same terminal and exit code."""
    os.environ[INSIDE] = "1"
    _become(_argv(["inside", "--", *argv]))


def is_inside() -> bool:
    """Return True if this process is in a world from :func:`run_inside`."""
    return INSIDE in os.environ


def create_world(prefix: str) -> None:
    """Create a persistent world when it does not exist.

    Raises:
        NoRights: The user namespace cannot be created.
    """
    if find_holder(prefix) is None:
        problem = _try(["hold", _holder_mark(prefix)])
        if problem is not None:
            raise NoRights(f"cannot keep a user namespace: {problem}; {fix()}")


def join(prefix: str, argv: list[str]) -> NoReturn:
    """Replace this process with a program in the world from :func:`hold`.

    Args:
        prefix: Prefix of the lab.
        argv: Program and arguments.

    Returns:
        Never: another program runs in this process.

    Raises:
        LabBroken: There is no such world.
    """
    pid = find_holder(prefix)
    if pid is None:
        raise LabBroken(f"lab {prefix}: no user namespace is kept for it; run lab up first")
    _become(_argv(["join", str(pid), "--", *argv]))


def release(prefix: str) -> bool:
    """End the world and all processes in it. Returns False if there is no world."""
    pid = find_holder(prefix)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    # The kernel will first end all other processes.
    while find_holder(prefix) == pid:
        time.sleep(0.01)
    return True


def find_holder(prefix: str) -> int | None:
    """Return the first process of a lab's persistent world, or ``None`` if there is none."""
    parts = f"\0{MODULE}\0hold\0{_holder_mark(prefix)}\0".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if parts in (folder / "cmdline").read_bytes():
                    status = (folder / "status").read_text().splitlines()
                    ids = next(line.split()[1:] for line in status if line.startswith("NSpid"))
                    if len(ids) > 1 and ids[-1] == "1":
                        return int(folder.name)
    return None


def _holder_mark(prefix: str) -> str:
    return f"--broadside-world={prefix}"


def _become(argv: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)  # noqa: S606 - no shell wanted


# Separate process (python -m broadside.lab.privileges)
# ------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Run one of the modes probe, inside -- ARGV, hold MARK, or join PID -- ARGV."""
    what, *parts = sys.argv[1:]
    argv = parts[parts.index("--") + 1 :] if "--" in parts else []
    try:
        match what:
            case "probe":
                _check("new network namespace", _libc.unshare(CLONE_NEWNS | CLONE_NEWNET))
                sys.exit(0)
            case "inside":
                _make_world()
                _run(lambda: _be_first(argv))
            case "hold":
                _make_world()
                _wait_in_world()
            case "join":
                _enter_world(int(parts[0]))
                _run(lambda: _be_member(argv))
            case _:
                sys.exit(f"{what}: not a mode of broadside.lab.privileges")
    except (OSError, LabError) as error:
        sys.exit(str(error))


def _make_world() -> None:
    """Create namespaces for this process. The process namespace is for its children."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID
    _check("new user namespace", _libc.unshare(flags))
    local = Path("/proc/self")
    # We need to do this first, so that the kernel will accept a gid_map.
    (local / "setgroups").write_text("deny")
    (local / "uid_map").write_text(f"0 {uid} 1")
    (local / "gid_map").write_text(f"0 {gid} 1")


def _enter_world(pid: int) -> None:
    """Enter an existing world. Its process namespace is for the children of this process."""
    folder = Path.cwd()
    with contextlib.ExitStack() as opened:
        # We need to open all files first. Inside the world, /proc will not show that process.
        descriptors = [
            opened.enter_context((Path("/proc") / str(pid) / "ns" / kind).open("rb"))
            for kind in ("user", "mnt", "net", "pid")
        ]
        for descriptor in descriptors:
            _check("join the user namespace", _libc.setns(descriptor.fileno(), 0))
    os.chdir(folder)


def _run(start: Callable[[], NoReturn]) -> NoReturn:
    """Run ``start`` in a child, forward signals, reap orphans, and exit with its exit code."""
    child = os.fork()
    if child == 0:
        try:
            start()
        except (OSError, LabError) as error:
            sys.stderr.write(f"{error}\n")
        os._exit(126)
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    # The child will also get SIGINT from the terminal.
    signal.signal(signal.SIGINT, lambda *_: None)
    ended, status = 0, 0
    while ended != child:
        ended, status = os.wait()
    exit_code = os.waitstatus_to_exitcode(status)
    sys.exit(exit_code if exit_code >= 0 else 128 - exit_code)


def _be_first(argv: list[str]) -> NoReturn:
    """Run as the first process of a world, which ends with the process outside."""
    _prctl_death_signal(signal.SIGKILL)
    _furnish()
    _run(lambda: _be_member(argv))


def _be_member(argv: list[str]) -> NoReturn:
    _prctl_death_signal(signal.SIGTERM)
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}"
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell wanted
    except OSError as error:
        raise LabBroken(f"{argv[0]}: {error.strerror}") from error


def _wait_in_world() -> NoReturn:
    """Fork a first process that only waits, and exit when the world is ready."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.close(read)
            os.setsid()
            # The kernel will then reap orphans.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            _furnish()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            os.close(write)
        except (OSError, LabError) as error:
            os.write(write, str(error).encode())
            os._exit(126)
        while True:
            signal.pause()
    os.close(write)
    with os.fdopen(read) as pipe:
        sys.exit(pipe.read() or 0)


def _furnish() -> None:
    """Set up its own /proc, an empty /run and the loopback interface."""
    _mount("none", Path("/"), None, MS_REC_PRIVATE)
    _mount("proc", Path("/proc"), "proc", MS_NOSUID_NODEV)
    for path in {Path("/run").resolve(), Path("/var/run").resolve()}:
        _mount("tmpfs", path, "tmpfs", MS_NOSUID_NODEV)
    Path("/var/run/netns").mkdir()
    # SIGCHLD might be ignored here, so we might not get the exit code. We can use the output
    # instead.
    with subprocess.Popen(
        [find_tool("ip"), "link", "set", "lo", "up"], stderr=subprocess.PIPE, text=True
    ) as ip:
        problem = ip.communicate()[1]
    if problem:
        raise LabBroken(f"ip link set lo up: {problem.strip()}")


def _mount(source: str, target: Path, kind: str | None, flags: int) -> None:
    arguments = (source.encode(), os.fsencode(target), kind and kind.encode(), flags, None)
    _check(f"mount {kind or 'private'} on {target}", _libc.mount(*arguments))


def _prctl_death_signal(number: int) -> None:
    _check("prctl", _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0))


def _check(what: str, result: int) -> None:
    if result:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
