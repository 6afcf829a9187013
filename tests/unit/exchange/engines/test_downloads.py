"""Tests to spread request bytes over seconds, using the kernel counter."""

import pytest

from broadside.exchange.engines.downloads import Seconds


def cells(seconds: Seconds) -> list[int]:
    return [interval.transferred_bytes for interval in seconds.intervals()]


def test_request_has_no_bytes_in_a_silent_second() -> None:
    reported, counted = Seconds(), Seconds()
    # One response that paused for a second.
    reported.add(100.0, 104.0, 3_000)
    for second, amount in enumerate((1_000, 1_000, 0, 1_000)):
        counted.add(100.0 + second, 101.0 + second, amount)
    # Without a counter, only the total for the four seconds can be known.
    assert cells(reported) == [3_000]
    assert cells(reported.shaped(counted)) == [1_000, 1_000, 0, 1_000]


@pytest.mark.parametrize("overhead", [0.0, 0.003])
@pytest.mark.parametrize("unread", [0, 400])
def test_bytes_are_conserved(overhead: float, unread: int) -> None:
    """Bytes after the last counter sample should be added to the end."""
    reported, counted = Seconds(), Seconds()
    for second in range(10):
        reported.add(100.0 + second, 101.0 + second, 1_000)
        amount = 1_000 - (unread if second == 9 else 0)
        counted.add(100.0 + second, 100.0 + second + amount / 1e3, round(amount * (1 + overhead)))
    result = cells(reported.shaped(counted))
    assert sum(result) == 10_000
    assert result[:9] == pytest.approx([1_000] * 9, rel=0.004)


def test_without_a_counter_an_interval_is_as_long_as_the_requests() -> None:
    reported = Seconds()
    reported.add(100.5, 102.5, 2_000)
    assert cells(reported.shaped(Seconds())) == [2_000]


def test_distant_counter_samples_make_one_interval() -> None:
    reported, counted = Seconds(), Seconds()
    for second in range(4):
        reported.add(100.0 + second, 101.0 + second, 1_000)
    counted.count(100.0, 101.0, 1_000)
    # The host was too busy to take a sample for three seconds.
    counted.count(101.0, 104.0, 3_000)
    assert cells(reported.shaped(counted)) == [1_000, 3_000]
