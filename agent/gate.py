"""The start gate: a library preloaded into iperf3 that holds a test back until the instant.

``agent/gate.c`` says how. Without it (no C compiler at build time, a static iperf3) the agent
starts the engine at the instant and says so (``StartMethod.TIMED_EXEC``).
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

# s for servers to become ready. One reading of the server (iperf3's default interval), so that its
# readings begin at whole seconds from the instant.
SETTLE_S: Final = 1.0
HOLD_MAX_S: Final = 9.0  # s; a server gives a held connection up after 10
_PROBE_TIMEOUT_S: Final = 5.0
_HELD: Final = re.compile(r"(?m)^broadside-gate: armed (\d+\.\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The gate's own account of what it did."""

    held_at_s: float  # epoch s at which every connection stood
    released_at_s: float  # epoch s at which it let the test go
    server_ahead_s: float  # s for which the server's clock ran before that; 0 unless it receives


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """UDP streams that the server did not answer when they were opened."""

    unanswered_count: int
    streams_count: int  # opened so far, in both directions


def find_gate() -> Path | None:
    """The built library, or None."""
    folder = Path(__file__).parent
    built = (folder / f"libgate{suffix}" for suffix in EXTENSION_SUFFIXES)
    # The loader splits LD_PRELOAD at spaces and colons.
    return next(
        (path for path in built if path.is_file() and not re.search("[ :]", str(path))), None
    )


def explain_no_gate() -> str:
    """One line: why there is no gate, what that costs, and the fix."""
    cost = "tests start up to seconds apart"
    folder = Path(__file__).parent
    if find_gate() is not None:
        return (
            f"the start gate does not take hold in this iperf3, so {cost}; "
            "use a dynamically linked one"
        )
    if re.search("[ :]", str(folder)):
        return f"no start gate from {folder}, so {cost}; use a path without spaces and colons"
    return f"the start gate was not built, so {cost}; {bring_gate()}"


def gate_env(
    gate: Path, release_at_s: float, traffic: Traffic, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that makes a client engine hold until epoch ``release_at_s``.

    ``base`` is the environment to add to (None: what programs are told). Start the engine at most
    :data:`HOLD_MAX_S` before the instant.

    Where only the client sends, the servers get :data:`SETTLE_S` to become ready first. The
    warm-up (omit) runs by both ends' clocks, so a test that has one settles for no time.
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
    """Whether the gate said that every connection stands."""
    return _HELD.search(stderr) is not None


def read_release(stderr: str) -> Release | None:
    """What the gate said on the engine's standard error; None when it never let go."""
    held = _HELD.search(stderr)
    released = re.search(r"(?m)^broadside-gate: released (\d+\.\d+) started (\d+\.\d+)$", stderr)
    if held is None or released is None:
        return None
    released_at_s, started_at_s = float(released[1]), float(released[2])
    return Release(
        held_at_s=float(held[1]),
        released_at_s=released_at_s,
        server_ahead_s=max(0.0, released_at_s - started_at_s) if started_at_s else 0.0,
    )


def serving_env(gate: Path, *, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which a server says when its clock starts.

    Args:
        gate: The built library.
        base: The environment to add to; None: what programs are told.
    """
    env = dict(program_environment() if base is None else base)
    return env | {
        "LD_PRELOAD": " ".join(filter(None, [str(gate), env.get("LD_PRELOAD")])),
        "BROADSIDE_GATE_SERVES": "1",
    }


def read_opening(stderr: str) -> Opening | None:
    """Return what the gate said of opening UDP streams; None where it opened none."""
    said = re.search(r"(?m)^broadside-gate: unanswered (\d+) of (\d+)$", stderr)
    if said is None:
        return None
    return Opening(unanswered_count=int(said[1]), streams_count=int(said[2]))


def takes_hold(gate: Path, binary: Sequence[str]) -> bool:
    """Whether the gate works in this engine, tried on a connection to nobody."""
    argv = [*binary, "--client", "127.0.0.1", "--port", "1", "--connect-timeout", "500"]
    env = program_environment() | {"LD_PRELOAD": str(gate), "BROADSIDE_GATE_PROBE": "1"}
    try:
        tried = subprocess.run(
            argv, env=env, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"broadside-gate: probed" in tried.stderr
