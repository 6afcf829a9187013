"""Turns in what all pairs of a fleet would do at one instant, and which copy of a row they read.

A partition of a table takes about 2,000 rows a second, a Standard namespace 1,000 credits a second.
So pairs go by their number, :data:`PAIRS_PER_S` of them a second: a pair needs no count of the
fleet, and thirty pairs lose a seventh of a second by it. Servers know no pair: their tests lie in
shares, by the agent's name. docs/azure-limits.md has the sums.
"""

from typing import Final
from zlib import crc32

PAIRS_PER_S: Final = 200  # four rows a pair at a burst's end, and looks: under half a partition
TURN_MAX_S: Final = 8.0  # s: of the 20 s for which a burst's jobs are visible before its instant
ARMED_TURN_MAX_S: Final = 2.0  # s: of those for which a pair is armed before its instant
SERVER_SHARES_COUNT: Final = 8  # partitions of an hour's server-side tests
BEAT_SPREAD_S: Final = 2.5  # s within which agents in Azure tell a change that all have at once
CONTROL_PAIRS_COUNT: Final = 250  # that read one copy of a run's control row, about twice a second


def turn_s(pair_index: int, within_s: float = TURN_MAX_S) -> float:
    """How long after the instant it is this pair's turn; from ``within_s`` on they begin again."""
    return pair_index / PAIRS_PER_S % within_s


def server_share(agent_id: str) -> int:
    """Which share of an hour's tests a server's are in."""
    return crc32(agent_id.encode()) % SERVER_SHARES_COUNT


def control_copy(pair_index: int) -> int:
    """Which copy of the control row a pair reads; 0 is the row itself."""
    return pair_index // CONTROL_PAIRS_COUNT


def control_copies_count(pairs_count: int) -> int:
    """How many there are, the row itself among them."""
    return control_copy(max(pairs_count, 1) - 1) + 1
