"""Test the live values of probes."""

import math
import time
from collections.abc import Sequence

import pytest

from broadside.agent.probe import LIVE_LOST_S, Prober
from broadside.exchange.messages import Probe, Traffic
from tests.unit.agent.jobs import make_job

STEP_S = 0.1


def prober(rtts_s: Sequence[float | None], monkeypatch: pytest.MonkeyPatch) -> Prober:
    """Return a prober that sent its last probe just now. None is a probe without a response."""
    traffic = Traffic(probe=Probe(every_s=STEP_S, before_s=4))
    probes = Prober(make_job(traffic=traffic))
    now_ns = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    for number, rtt_s in enumerate(rtts_s):
        age_s = (len(rtts_s) - 1 - number) * STEP_S
        probes._sent_ns[number] = now_ns - round(age_s * 1e9)
        probes._rtt_s[number] = math.nan if rtt_s is None else rtt_s
    probes._sent_count = len(rtts_s)
    return probes


def test_there_is_no_value_before_the_first_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    live = prober([], monkeypatch).live()
    assert (live.rtt_s, live.loss_ratio) == (None, None)


def test_one_slow_probe_does_not_change_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    live = prober([0.001] * 18 + [0.4, 0.001], monkeypatch).live()
    assert live.rtt_s == pytest.approx(0.001)
    assert live.loss_ratio == 0


def test_a_blocked_path_is_visible_before_the_probes_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = prober([0.001] * 15 + [None] * 5, monkeypatch).live()
    assert live.rtt_s is not None
    assert live.rtt_s >= 0.2
    assert live.loss_ratio == 0


def test_a_probe_is_lost_after_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    count = round(LIVE_LOST_S / STEP_S)
    live = prober([0.001] * 8 + [None] * (count + 2), monkeypatch).live()
    assert live.loss_ratio is not None
    # Two of ten probes have waited for more than half a second.
    assert live.loss_ratio == pytest.approx(0.1, abs=0.11)
    assert live.loss_ratio > 0


def test_a_steady_slow_path_has_a_separate_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that wait as long as the others did say nothing about the path."""
    live = prober([0.3] * 17 + [None] * 3, monkeypatch).live()
    assert live.rtt_s == pytest.approx(0.3)
