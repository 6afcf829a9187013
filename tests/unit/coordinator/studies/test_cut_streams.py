"""Tests for sessions that are cut during a drill or hold."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from broadside.coordinator.core.summary import Disruption, DisruptionKind, SilentStream
from broadside.coordinator.studies.cut_streams import as_reset, cut_streams, with_cut_streams
from broadside.exchange.messages import Flow
from tests.unit.coordinator.studies.samples import drill

AT = datetime(2026, 11, 23, 12, 1, tzinfo=UTC)
ENDED_AT = AT + timedelta(seconds=30)


def silence(pair: int, port: int, *, after_s: float = 1.0, for_s: float = 29.0) -> SilentStream:
    return SilentStream(
        pair=f"pair-{pair:03d}",
        flow=Flow.UP,
        client_port=port,
        streams_count=4,
        from_at=AT + timedelta(seconds=after_s),
        duration_s=for_s,
    )


def test_only_streams_silent_after_the_event_are_cut() -> None:
    silent = (
        silence(1, 1),
        # The server can wait for the client to send more.
        silence(1, 2, for_s=45),
        # This stream has recovered.
        silence(1, 3, for_s=5),
        # This stream was already silent before the event.
        silence(1, 4, after_s=-5, for_s=40),
    )
    cut = cut_streams(silent, AT.timestamp(), ENDED_AT.timestamp())
    assert [item.client_port for item in cut] == [1, 2]


def test_cut_streams_are_counted_as_sessions_of_the_drill() -> None:
    cut = (silence(1, 1), silence(1, 2, after_s=2), silence(2, 3))
    result = with_cut_streams(drill(), cut, {"pair-001"})
    assert (result.cut_count, result.opened_again_count) == (3, 2)
    assert result.cut_pairs == ("pair-001", "pair-002")
    assert (result.cut_from_at, result.cut_to_at) == (cut[0].from_at, cut[1].from_at)
    assert with_cut_streams(drill(), cut, None).opened_again_count is None
    assert with_cut_streams(drill(), (), {"pair-001"}) == drill()


def test_fully_cut_pair_is_counted_once() -> None:
    fully_cut = drill(cut_count=4, cut_pairs=("pair-001",), cut_from_at=AT, cut_to_at=AT)
    cut = (silence(1, 1), silence(2, 3))
    result = with_cut_streams(fully_cut, cut, {"pair-002"})
    # The value is not known for the first pair.
    assert (result.cut_count, result.opened_again_count) == (5, None)
    assert (
        with_cut_streams(
            fully_cut.model_copy(update={"opened_again_count": 4}), cut, {"pair-002"}
        ).opened_again_count
        == 5
    )


@pytest.mark.parametrize(
    ("known_s", "short_bytes"),
    # At least three seconds are needed to get a level.
    [(5, 0.75e6 * 28), (2, None)],
)
def test_cut_streams_of_a_staircase_are_reset_pairs(
    known_s: int, short_bytes: float | None
) -> None:
    """The missing bytes are from the fleet rate, even if there is only a small drop."""
    reset = Disruption(
        kind=DisruptionKind.RESET,
        burst_index=0,
        start_at=AT,
        end_at=ENDED_AT,
        duration_s=30,
        scope="one",
        pairs_count=1,
        pairs=("pair-001",),
    )
    received_bytes = np.array([1e6] * known_s + [0.25e6] * 14 + [np.nan] + [0.25e6] * 14)
    start_s = AT.timestamp() + 1 - known_s
    cut = (silence(1, 1), silence(2, 2), silence(3, 3))
    [result] = as_reset(cut, (reset,), received_bytes, start_s, ENDED_AT)
    assert (result.kind, result.pairs_count, result.pairs) == (
        *(DisruptionKind.RESET, 2),
        ("pair-002", "pair-003"),
    )
    assert result.short_bytes == short_bytes
    assert as_reset(cut[:1], (reset,), received_bytes, start_s, ENDED_AT) == ()
