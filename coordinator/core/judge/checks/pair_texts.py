"""Texts that name the pairs without a complete record, and what to do about them."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from broadside.coordinator.core.summary import BurstSummary, PairSummary, SecondState

# Number of items to list in a finding.
LISTED_COUNT: Final = 3


class PairState(NamedTuple):
    """Texts for a state of pairs.

    Attributes:
        state: The state.
        text: What happened to the pairs.
        next_step: What to do.
    """

    state: SecondState
    text: str
    next_step: str


PAIR_STATES: Final = (
    PairState(
        SecondState.MISSED,
        "never started",
        "Start client agents on more hosts (`broadside agents` lists the connected ones)",
    ),
    PairState(
        SecondState.LOST,
        "did not report all of their seconds",
        "Read the agent log of each named pair, and check its network",
    ),
    PairState(
        SecondState.NULL,
        "ended without any byte",
        "Read the error of each named pair in the pair table of the report",
    ),
    PairState(
        SecondState.ABANDONED,
        "were stopped before the end",
        "Read the agent log of each named pair",
    ),
    PairState(
        SecondState.REFUSED,
        "were refused by the agent",
        "Remove the cause of the refusal that the text names",
    ),
    PairState(
        SecondState.LATE,
        "started too late",
        "Check the clocks, the start gate and the queue (`broadside doctor` on the hosts)",
    ),
)


def pair_on_client(pair: PairSummary) -> str:
    """Return the name of a pair with the agent of its client."""
    return f"{pair.pair} on {pair.client_agent_id}" if pair.client_agent_id else pair.pair


def list_pairs(pairs: Sequence[PairSummary]) -> str:
    """Return the names of the first pairs, grouped by the reason of their state."""
    by_reason: dict[str | None, list[str]] = {}
    for pair in pairs[:LISTED_COUNT]:
        by_reason.setdefault(pair.reason, []).append(pair.pair)
    listed = [
        ", ".join(names) + (f" ({reason})" if reason else "") for reason, names in by_reason.items()
    ]
    more = len(pairs) - LISTED_COUNT
    return "; ".join(listed) + (f"; and {more} more" if more > 0 else "")


def state_texts(burst: BurstSummary) -> Iterator[tuple[PairState, int, str]]:
    """Yield each state with pairs: the state, the number of pairs, and a text with their names."""
    for state in PAIR_STATES:
        pairs = [pair for pair in burst.pairs if pair.state is state.state]
        if pairs:
            yield (
                state,
                len(pairs),
                f"{len(pairs)} of {len(burst.pairs)} pairs {state.text}: {list_pairs(pairs)}.",
            )


def missing_pairs(burst: BurstSummary) -> str:
    """Return a sentence that names the pairs without a complete record, or an empty text.

    Pairs that were measured with gaps are named if there are no other ones.
    """
    texts = [text for _, _, text in state_texts(burst)]
    if not texts:
        gaps = [pair for pair in burst.pairs if pair.completeness_ratio < 1]
        if gaps:
            listed = list_pairs(sorted(gaps, key=lambda pair: pair.completeness_ratio))
            texts = [f"{len(gaps)} of {len(burst.pairs)} pairs have gaps: {listed}."]
    return "".join(f" {text}" for text in texts)


def missing_pairs_step(burst: BurstSummary) -> str:
    """Return the next step for a burst without the records of all pairs.

    It is the step for the state with the most pairs.
    """
    states = sorted(state_texts(burst), key=lambda item: -item[1])
    if states:
        return f"{states[0][0].next_step}. Then run again"
    if any(pair.completeness_ratio < 1 for pair in burst.pairs):
        return "Read the agent logs of the pairs with gaps, then run again"
    return "Run again with all pairs"
