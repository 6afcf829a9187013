"""Random rounds that kill or stop coordinator, broker, agents and engines, several at once.

A round is a fault like those of the matrix, generated from a seed. It has two or three moments. At
each moment two to four targets are hit together and restored later. Every cell rule applies: each
planned pair-second in one state, nothing twice, no engine after the verdict.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.faults.fault_range import Range
from tests.faults.matrix import FAULTS, LEAD_BEFORE_CLAIM_S, Cell, Fault, Phase, Scene

RANDOM: Final = "random"
# The duration of a fault at one moment.
LASTS_S: Final = (0.3, 6.0)
# The time between the recovery and the next moment.
APART_S: Final = (0.2, 5.0)
# A sender that was stopped twice is silent within this time after a burst.
STOP_S: Final = 30.0
GAP_S: Final = 40

_KILL, _STOP = "kill", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Fault of one target at one moment.

    Attributes:
        victim: ``coordinator``, ``broker``, an agent's id, or ``engines@`` and an agent's id.
        how: ``kill`` or ``stop``.
    """

    victim: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Faults injected together, and their duration.

    Attributes:
        then_s: Time until the next moment.
    """

    strikes: tuple[Strike, ...]
    lasts_s: float
    then_s: float


def rounds(seed: int, count: int) -> tuple[Cell, ...]:
    """Return ``count`` rounds, each with a random phase."""
    names = [f"{RANDOM}.{seed}.{number}" for number in range(1, count + 1)]
    return tuple((name, random.Random(name).choice(list(Phase))) for name in names)


def fault_named(name: str) -> Fault:
    """Return a row of the matrix, or a round by its name."""
    return FAULTS[name] if name in FAULTS else _round(name)


def moments(name: str, agents: list[str]) -> list[Moment]:
    """Return the moments of a round, always the same for the same name and agents."""
    draw = random.Random(f"{name}/moments")
    victims = ["coordinator", "broker", *agents, *(f"engines@{agent}" for agent in agents)]
    return [
        Moment(
            strikes=tuple(
                Strike(victim=victim, how=draw.choice((_KILL, _STOP)))
                for victim in draw.sample(victims, draw.randint(2, 4))
            ),
            lasts_s=round(draw.uniform(*LASTS_S), 2),
            then_s=round(draw.uniform(*APART_S), 2),
        )
        for _ in range(draw.randint(2, 3))
    ]


def _round(name: str) -> Fault:
    def inject(scene: Scene) -> str:
        reported = []
        for moment in moments(name, sorted(scene.range.plans)):
            mend = [_strike(scene.range, strike) for strike in moment.strikes]
            time.sleep(moment.lasts_s)
            for verb in mend:
                verb()
            reported.append(
                " and ".join(f"{strike.how} {strike.victim}" for strike in moment.strikes)
            )
            time.sleep(moment.then_s)
        return ", then ".join(reported)

    return Fault(
        name=name,
        description="several random targets are killed or stopped together",
        inject=inject,
        heal=lambda scene: _mend_all(scene.range),
        gap_s=GAP_S,
        stop_s=STOP_S,
        lasts_before_claim_s=LEAD_BEFORE_CLAIM_S,
        backs_up=True,
    )


def _strike(site: Range, strike: Strike) -> Callable[[], object]:
    """Inject the fault and return the function that heals it."""
    kills = strike.how == _KILL
    number = signal.SIGKILL if kills else signal.SIGSTOP
    kind, _, agent_id = strike.victim.rpartition("@")
    if strike.victim == "coordinator":
        if kills:
            site.coordinator.kill()
            # The recovery of an agent may have started it already.
            return site.coordinator.revive
        site.coordinator.signal(number)
        return lambda: site.coordinator.signal(signal.SIGCONT)
    # A stopped broker has the same effect as a killed one.
    if strike.victim == "broker":
        site.break_queue()
        return site.mend_queue
    if kind:
        site.signal_engines(agent_id, number)
        return lambda: site.signal_engines(agent_id, signal.SIGCONT)
    site.kill(agent_id, number)
    return site.revive if kills else lambda: site.kill(agent_id, signal.SIGCONT)


def _mend_all(site: Range) -> None:
    """Restore all targets after an interrupted round. Healthy targets are not changed."""
    for agent_id in site.plans:
        site.signal_engines(agent_id, signal.SIGCONT)
        site.kill(agent_id, signal.SIGCONT)
    site.revive()
    site.mend_queue()
