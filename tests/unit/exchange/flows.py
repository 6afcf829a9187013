"""Realistic test flow with noise, jitter, bursts of losses and varying windows."""

import random

from broadside.exchange.messages import Interval

MSS_BYTES = 1_448


def ten_gigabit_flow(seconds_count: int, seed: int) -> tuple[Interval, ...]:
    """Return intervals for 64 TCP streams with about 10 Gbit/s in total, as reported by the
    sender.

    Byte counts are set to be no multiples of a block, which is harder to compress.
    """
    noise = random.Random(seed)
    windows = [noise.randint(200, 900) for _ in range(64)]
    level, ends_us, intervals = 1.25e9, [0], []
    for second in range(seconds_count):
        level = 0.9 * level + 0.1 * noise.gauss(1.25e9, 6e7)
        hiccup_us = noise.randint(0, 20_000) if noise.random() < 0.02 else 0
        ends_us.append(ends_us[-1] + 1_000_000 + round(noise.gauss(0, 300)) + hiccup_us)
        windows = [
            window // 2 if noise.random() < 0.05 else window + noise.randint(0, 12)
            for window in windows
        ]
        quiet = noise.random() < 0.8
        intervals.append(
            Interval(
                start_s=ends_us[-2] / 1e6,
                end_s=ends_us[-1] / 1e6,
                transferred_bytes=round(noise.gauss(level, 6e7)) if second else 400_000_000,
                retransmits_count=round(noise.expovariate(1 / 30 if quiet else 1 / 800)),
                rtt_s=abs(round(noise.gauss(4_200, 600))) / 1e6,
                cwnd_bytes=sum(windows) * MSS_BYTES,
            )
        )
    return tuple(intervals)
