"""The start gate: a library preloaded into iperf3 that holds a test back until the instant.

``agent/gate.c`` says how. Without it (no C compiler at build time, a static iperf3) the agent
starts the engine at the instant and says so (``StartMethod.TIMED_EXEC``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exchange.messages import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The gate's own account of what it did."""

    held_at_s: float  # epoch s at which everything else was ready
    released_at_s: float  # epoch s


def find_gate() -> Path | None:
    """The built library, or None."""
    raise NotImplementedError


def explain_no_gate() -> str:
    """One line: why there is no gate, what that costs, and the fix."""
    raise NotImplementedError


def gate_env(
    gate: Path, release_at_s: float, traffic: Traffic, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that makes a client engine hold until epoch ``release_at_s``.

    ``base`` is the environment to add to (None: this process's).
    """
    raise NotImplementedError


def read_release(stderr: str) -> Release | None:
    """What the gate said on the engine's standard error; None when it never held."""
    raise NotImplementedError
