"""Tests for the longest event loop lag in the last minute."""

from broadside.coordinator.loop_lag import KEPT_S, LoopLag


def test_longest_lag_expires_after_a_minute() -> None:
    clock = [100.0]
    lag = LoopLag(lambda: clock[0])
    shown = [lag.longest_s]
    for lag_s in (0.01, 3.0, -0.1, 0.02):
        lag.note(lag_s)
        clock[0] += 1
    shown.append(lag.longest_s)
    clock[0] += KEPT_S - 2
    shown.append(lag.longest_s)
    clock[0] += KEPT_S
    assert [*shown, lag.longest_s] == [None, 3.0, 0.02, None]
