"""Runs one engine process: its own group, timed lines, a deadline, and no survivors.

An engine never outlives its agent: the kernel kills it when the agent dies (PR_SET_PDEATHSIG), and
ends it at ``hard_stop_at_s`` even if the agent hangs (an interval timer, which survives exec).

Errors::

    EngineError
    ├── EngineMissing   no iperf3 where we looked
    ├── EngineTooOld    an iperf3 below the minimum
    └── EngineUnusable  it is there and does not run; says why
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exchange.iperf3 import Version

OnLine = Callable[[bytes, float], None]


class EngineError(Exception):
    """The traffic engine cannot be used."""


class EngineMissing(EngineError):
    """No iperf3 where we looked."""


class EngineTooOld(EngineError):
    """An iperf3 below the minimum."""


class EngineUnusable(EngineError):
    """It is there and does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An iperf3 that runs."""

    binary: tuple[str, ...]  # argv prefix
    version: Version
    preloadable: bool  # dynamically linked: the gate works in it


def find_iperf3(setting: str | None = None) -> Engine:
    """The iperf3 to use: the setting, else the checkout's ``.tools``, else ``PATH``.

    Runs ``--version`` (blocking, milliseconds). Raises :class:`EngineError` with one line that
    names what was tried and the fix.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How an engine process ended. Expected endings are values: this never is an exception."""

    exit_code: int | None  # negative: killed by that signal; None: it never ran
    stderr: str  # the last 64 KiB
    started_at_s: float  # epoch s at which it was spawned
    ended_at_s: float  # epoch s
    stopped: str | None = None  # why we stopped it: "deadline", or stop's reason
    error: str | None = None  # why it could not be run, in one line


class EngineProcess:
    """One engine under way. Create with :meth:`spawn`; end with :meth:`stop` or by waiting."""

    pid: int

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        *,
        on_line: OnLine,
        deadline_at_s: float | None,
        hard_stop_at_s: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "EngineProcess":
        """Start the engine. Raises :class:`EngineUnusable` when it cannot be executed.

        ``on_line`` gets every line of standard output (without its end) and the epoch second at
        which its first byte arrived. From ``deadline_at_s`` on the engine is ended as by
        ``stop("deadline")``. ``hard_stop_at_s`` (default: 15 s after the deadline) is the
        kernel's timer, for an agent that hangs.
        """
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        """SIGTERM now, which makes iperf3 print what it has; SIGKILL 2 s later. The first reason
        stands."""
        raise NotImplementedError

    async def wait(self) -> Exit:
        """Wait for the end of process and output. Cancelling the waiter kills the engine."""
        raise NotImplementedError


async def run_engine(
    argv: Sequence[str],
    *,
    on_line: OnLine,
    deadline_at_s: float | None,
    hard_stop_at_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> Exit:
    """Spawn and wait; an engine that cannot be executed is an :class:`Exit` with ``error``."""
    raise NotImplementedError
