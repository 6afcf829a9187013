"""Spread simultaneous requests of a fleet over time and over copies of a row.

A table partition accepts about 2,000 rows per second. A Standard namespace of Service Bus has 1,000
credits per second. Pairs therefore send in the order of their index, ``PAIRS_PER_S`` pairs per
second. A pair does not need to know the size of the fleet, and thirty pairs lose only a seventh of
a second. Servers have no pair index, so their tests are distributed over partitions by agent name.
/docs/azure-limits.html of the coordinator has the calculation.
"""

from typing import Final
from zlib import crc32

# Each pair writes four rows at the end of a burst and also polls. In total this is less than half
# of the rate that a partition accepts.
PAIRS_PER_S: Final = 200
# Jobs can be received 20 s before the planned start, so this delay should not be a problem.
TURN_MAX_S: Final = 8.0
# The longest delay before an armed pair reports this. It has little time before the planned start.
ARMED_TURN_MAX_S: Final = 2.0
# The server-side tests of one hour are distributed over this number of partitions.
SERVER_SHARES_COUNT: Final = 8
# If a change affects the whole fleet, agents in Azure spread their heartbeats over this time.
BEAT_SPREAD_S: Final = 2.5
# The number of pairs that read the same copy of a run's control row, about twice a second.
CONTROL_PAIRS_COUNT: Final = 250


def turn_s(pair_index: int, within_s: float = TURN_MAX_S) -> float:
    """Return how long a pair waits after an instant that all pairs share, in seconds.

    Args:
        pair_index: The pair index in the run, from 0.
        within_s: The delay is less than this. Pairs beyond it start again at zero.
    """
    return pair_index / PAIRS_PER_S % within_s


def server_share(agent_id: str) -> int:
    """Return the partition number, within an hour, for a server's tests."""
    return crc32(agent_id.encode()) % SERVER_SHARES_COUNT


def control_copy(pair_index: int) -> int:
    """Return the number of the control row copy that a pair reads, 0 for the row itself."""
    return pair_index // CONTROL_PAIRS_COUNT


def control_copies_count(pairs_count: int) -> int:
    """Return the number of copies of the control row, including the row itself."""
    return control_copy(max(pairs_count, 1) - 1) + 1
