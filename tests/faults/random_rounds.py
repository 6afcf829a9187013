"""Rounds of luck: coordinator, broker, agents and engines killed and stopped, several at once.

A round is a fault like those of the matrix, drawn from a seed: two or three moments, at each of
which two to four of all that there is are struck together and mended after a while. So every cell
rule holds it: each planned pair-second in one state, nothing twice, no engine after the verdict.
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
LASTS_S: Final = (0.3, 6.0)  # s for which what was struck at one moment stays so
APART_S: Final = (0.2, 5.0)  # s between the mending and the next moment
STOP_S: Final = 30.0  # s after a burst by which a sender that was stopped twice is silent, too
GAP_S: Final = 40

_KILL, _STOP = "kill", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One victim at one moment."""

    victim: str  # coordinator, broker, an agent's id, or engines@<agent's id>
    how: str  # kill or stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is struck together, and for how long."""

    strikes: tuple[Strike, ...]
    lasts_s: float
    then_s: float  # until the next one


def rounds(seed: int, count: int) -> tuple[Cell, ...]:
    """So many rounds, each in a phase of its own drawing."""
    names = [f"{RANDOM}.{seed}.{number}" for number in range(1, count + 1)]
    return tuple((name, random.Random(name).choice(list(Phase))) for name in names)


def fault_named(name: str) -> Fault:
    """A row of the matrix, or a round by its name."""
    return FAULTS[name] if name in FAULTS else _round(name)


def moments(name: str, agents: list[str]) -> list[Moment]:
    """What a round does, whoever its agents are: the same for the same name."""
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
        told = []
        for moment in moments(name, sorted(scene.range.plans)):
            mend = [_strike(scene.range, each) for each in moment.strikes]
            time.sleep(moment.lasts_s)
            for verb in mend:
                verb()
            told.append(" and ".join(f"{each.how} {each.victim}" for each in moment.strikes))
            time.sleep(moment.then_s)
        return ", then ".join(told)

    return Fault(
        name=name,
        says="several of all that there is killed or stopped together, by luck",
        inject=inject,
        heal=lambda scene: _mend_all(scene.range),
        gap_s=GAP_S,
        stop_s=STOP_S,
        lasts_before_claim_s=LEAD_BEFORE_CLAIM_S,
        backs_up=True,
    )


def _strike(site: Range, strike: Strike) -> Callable[[], object]:
    """Do it; returns what undoes it."""
    kills = strike.how == _KILL
    number = signal.SIGKILL if kills else signal.SIGSTOP
    kind, _, agent_id = strike.victim.rpartition("@")
    if strike.victim == "coordinator":
        if kills:
            site.coordinator.kill()
            return site.coordinator.revive  # who mends an agent before us has started it already
        site.coordinator.signal(number)
        return lambda: site.coordinator.signal(signal.SIGCONT)
    if strike.victim == "broker":  # a stopped one is as good as gone
        site.break_queue()
        return site.mend_queue
    if kind:
        site.signal_engines(agent_id, number)
        return lambda: site.signal_engines(agent_id, signal.SIGCONT)
    site.kill(agent_id, number)
    return site.revive if kills else lambda: site.kill(agent_id, signal.SIGCONT)


def _mend_all(site: Range) -> None:
    """Whatever a round that was broken off left behind; nothing where all is well."""
    for agent_id in site.plans:
        site.signal_engines(agent_id, signal.SIGCONT)
        site.kill(agent_id, signal.SIGCONT)
    site.revive()
    site.mend_queue()
