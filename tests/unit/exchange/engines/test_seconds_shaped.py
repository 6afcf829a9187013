"""Bytes of requests shared out over seconds as the kernel's counter saw them."""

import pytest

from broadside.exchange.engines.downloads import Seconds


def cells(seconds: Seconds) -> list[int]:
    return [interval.transferred_bytes for interval in seconds.intervals()]


def test_a_request_over_a_dark_second_puts_no_byte_into_it() -> None:
    reported, counted = Seconds(), Seconds()
    reported.add(100.0, 104.0, 3_000)  # one answer, that stood still for a second
    for second, amount in enumerate((1_000, 1_000, 0, 1_000)):
        counted.add(100.0 + second, 101.0 + second, amount)
    assert cells(reported) == [3_000]  # known over its own four seconds only
    assert cells(reported.shaped(counted)) == [1_000, 1_000, 0, 1_000]


@pytest.mark.parametrize("overhead", [0.0, 0.003])
@pytest.mark.parametrize("unread", [0, 400])
def test_no_byte_is_lost(overhead: float, unread: int) -> None:
    """What came after the last look at the counter is put behind it."""
    reported, counted = Seconds(), Seconds()
    for second in range(10):
        reported.add(100.0 + second, 101.0 + second, 1_000)
        amount = 1_000 - (unread if second == 9 else 0)
        counted.add(100.0 + second, 100.0 + second + amount / 1e3, round(amount * (1 + overhead)))
    made = cells(reported.shaped(counted))
    assert sum(made) == 10_000
    assert made[:9] == pytest.approx([1_000] * 9, rel=0.004)


def test_without_a_counter_a_reading_is_as_long_as_the_requests() -> None:
    reported = Seconds()
    reported.add(100.5, 102.5, 2_000)
    assert cells(reported.shaped(Seconds())) == [2_000]


def test_looks_that_are_far_apart_are_one_reading() -> None:
    reported, counted = Seconds(), Seconds()
    for second in range(4):
        reported.add(100.0 + second, 101.0 + second, 1_000)
    counted.count(100.0, 101.0, 1_000)
    counted.count(101.0, 104.0, 3_000)  # a busy host: nobody looked for three seconds
    assert cells(reported.shaped(counted)) == [1_000, 3_000]
