"""The longest time of the last minute that the event loop was blocked."""

from broadside.coordinator.loop_lag import KEPT_S, LoopLag


def test_the_longest_lag_of_a_minute_is_shown_and_then_forgotten() -> None:
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
