"""Start gate, a library that is preloaded into iperf3 to delay a test until its planned start.

See ``agent/gate.c`` for the details. If it cannot be used (no C compiler for the build, a static
iperf3), the agent starts the engine at the planned start instead. The report will then have
``StartMethod.TIMED_EXEC``.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from broadside.exchange.installation import bring_gate
from broadside.exchange.messages import Direction, Traffic
from broadside.exchange.programs import program_environment

# Seconds that servers get to become ready. This is one interval of the server (iperf3's default),
# so that its intervals start at full seconds from the planned start.
SETTLE_S: Final = 1.0
# A server closes a held connection after 10 s.
HOLD_MAX_S: Final = 9.0
_PROBE_TIMEOUT_S: Final = 5.0
_HELD: Final = re.compile(r"(?m)^broadside-gate: armed (\d+\.\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Report of the start gate.

    Attributes:
        gate_reached_at_s: Unix timestamp when all connections were established.
        released_at_s: Unix timestamp when the test was started.
        server_ahead_s: Seconds that the server's clock was running before that. This is 0 unless
            the server receives.
    """

    gate_reached_at_s: float
    released_at_s: float
    server_ahead_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """UDP streams that did not get an answer from the server when they were opened.

    ``streams_count`` is the number of streams opened so far, in both directions.
    """

    unanswered_count: int
    streams_count: int


def find_gate() -> Path | None:
    """Return the path of the library, or None if it was not built or cannot be used."""
    return _find_library("libgate")


def find_bodies() -> str | None:
    """Return the path of the library for the content of large files, like :func:`find_gate`.

    Returns:
        The path, or None if the library was not built or cannot be used.
    """
    path = _find_library("libbodies")
    return None if path is None else str(path)


def _find_library(name: str) -> Path | None:
    folder = Path(__file__).parent
    built = (folder / f"{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    # The loader splits LD_PRELOAD at spaces and colons.
    return next(
        (path for path in built if path.is_file() and not re.search("[ :]", str(path))), None
    )


def explain_no_gate() -> str:
    """Return a line with the reason why there is no gate, its effect and the fix."""
    cost = "start times of tests differ by up to some seconds"
    folder = Path(__file__).parent
    if find_gate() is not None:
        return (
            f"the start gate cannot be loaded into this iperf3, so {cost}; "
            "use a dynamically linked iperf3"
        )
    if re.search("[ :]", str(folder)):
        return f"no start gate from {folder}, so {cost}; use a path without spaces and colons"
    return f"the start gate was not built, so {cost}; {bring_gate()}"


def gate_env(
    gate: Path, release_at_s: float, traffic: Traffic, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment to make a client engine wait for the planned start.

    The engine should be started at most :data:`HOLD_MAX_S` before that time.

    If only the client sends, the servers get :data:`SETTLE_S` to become ready. The warm-up (omit)
    is based on the clocks of both ends, so this time is 0 for a test with a warm-up.

    Args:
        gate: Path of the library.
        release_at_s: Unix timestamp of the planned start.
        traffic: Traffic of the job.
        base: Environment to extend, or None to use the default one for programs.

    Returns:
        Variables by name, including those of ``base``.
    """
    env = dict(program_environment() if base is None else base)
    settles = traffic.direction is Direction.FORWARD and traffic.omit_s == 0
    return env | {
        "LD_PRELOAD": " ".join(filter(None, [str(gate), env.get("LD_PRELOAD")])),
        "BROADSIDE_GATE_AT": f"{release_at_s:.6f}",
        "BROADSIDE_GATE_CONNECTS": str(1 + traffic.streams_count * len(traffic.direction.flows)),
        "BROADSIDE_GATE_SETTLE": str(SETTLE_S if settles else 0.0),
    }


def holds(stderr: str) -> bool:
    """Return True if the gate has reported that all connections are established."""
    return _HELD.search(stderr) is not None


def read_release(stderr: str) -> Release | None:
    """Parse the report of the gate, or return None if it did not start the test."""
    match = _HELD.search(stderr)
    released = re.search(r"(?m)^broadside-gate: released (\d+\.\d+) started (\d+\.\d+)$", stderr)
    if match is None or released is None:
        return None
    released_at_s, started_at_s = float(released[1]), float(released[2])
    return Release(
        gate_reached_at_s=float(match[1]),
        released_at_s=released_at_s,
        server_ahead_s=max(0.0, released_at_s - started_at_s) if started_at_s else 0.0,
    )


def serving_env(gate: Path, *, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment to make a server report when its clock starts.

    Args:
        gate: Path of the library.
        base: Environment to extend, or None to use the default one for programs.

    Returns:
        Variables by name, including those of ``base``.
    """
    env = dict(program_environment() if base is None else base)
    return env | {
        "LD_PRELOAD": " ".join(filter(None, [str(gate), env.get("LD_PRELOAD")])),
        "BROADSIDE_GATE_SERVES": "1",
    }


def read_opening(stderr: str) -> Opening | None:
    """Parse the report on UDP streams, or return None if no stream was opened."""
    unanswered = re.search(r"(?m)^broadside-gate: unanswered (\d+) of (\d+)$", stderr)
    if unanswered is None:
        return None
    return Opening(unanswered_count=int(unanswered[1]), streams_count=int(unanswered[2]))


def preload_works(gate: Path, binary: Sequence[str]) -> bool:
    """Return True if the gate works with an engine.

    This is tested with a connection to a port without a server.

    Args:
        gate: Path of the library.
        binary: First words of the engine's command line.
    """
    argv = [*binary, "--client", "127.0.0.1", "--port", "1", "--connect-timeout", "500"]
    env = program_environment() | {"LD_PRELOAD": str(gate), "BROADSIDE_GATE_PROBE": "1"}
    try:
        tried = subprocess.run(
            argv, env=env, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"broadside-gate: probed" in tried.stderr
