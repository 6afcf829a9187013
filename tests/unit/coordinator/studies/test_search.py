"""Tests for the search, using simulated devices."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.search import loss_ratio, search_answer
from broadside.coordinator.studies.study import FailingReason, Search, StudySpec, TrialResult
from broadside.coordinator.studies.trials import next_trial
from broadside.exchange.messages import Protocol, Traffic

SPEC = RunSpec(scenario="search", pairs_count=30)
QUESTION = Search(min_bits_per_second=1e9, max_bits_per_second=100e9)
Device = Callable[[float, int], TrialResult]


def capped(cap_bits_per_second: float) -> Device:
    """Return a device that can carry traffic up to the cap."""

    def measure(offered: float, index: int) -> TrialResult:
        received = min(offered, cap_bits_per_second)
        return TrialResult(
            index=index, received_bits_per_second=received, completeness_ratio=1.0, rtt_mean_s=0.001
        )

    return measure


def run_search(question: Search, device: Device, spec: RunSpec = SPEC) -> list[TrialResult]:
    study = StudySpec(name="s", question=question, spec=spec)
    results: list[TrialResult] = []
    while (trial := next_trial(study, results)) is not None:
        assert trial.offered_bits_per_second is not None
        results.append(device(trial.offered_bits_per_second, trial.index))
    return results


@settings(max_examples=60, deadline=None)
@given(cap=st.floats(2e9, 98e9), precision=st.sampled_from([0.01, 0.02, 0.1]))
def test_search_brackets_the_cap_with_requested_precision(cap: float, precision: float) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, precision_ratio=precision)
    results = run_search(question, capped(cap))
    answer = search_answer(question, SPEC, results)
    assert answer.highest_bits_per_second is not None
    assert answer.lowest_failing_bits_per_second is not None
    threshold = question.shortfall_max_ratio
    assert answer.highest_bits_per_second * (1 - threshold) <= cap * (1 + 1e-6)
    assert answer.lowest_failing_bits_per_second * (1 - threshold) > cap * (1 - 1e-6)
    assert answer.width_ratio is not None
    assert answer.width_ratio <= precision * 1.01


@settings(max_examples=20, deadline=None)
@given(cap=st.floats(2e9, 99e9))
def test_search_resumes_from_stored_results(cap: float) -> None:
    results = run_search(QUESTION, capped(cap))
    study = StudySpec(name="s", question=QUESTION, spec=SPEC)
    offers = [next_trial(study, results[:count]) for count in range(len(results))]
    assert [trial.index for trial in offers if trial] == list(range(len(results)))
    assert next_trial(study, results) is None


def test_search_when_all_or_no_rates_pass() -> None:
    passing = search_answer(QUESTION, SPEC, run_search(QUESTION, capped(500e9)))
    assert passing.highest_bits_per_second == 100e9
    assert passing.lowest_failing_bits_per_second is None
    failing = search_answer(QUESTION, SPEC, run_search(QUESTION, capped(0.1e9)))
    assert failing.highest_bits_per_second is None
    assert failing.lowest_failing_bits_per_second == 1e9


def test_rtt_threshold_lowers_result_and_unknown_rtt_fails() -> None:
    question = Search(
        min_bits_per_second=1e9,
        max_bits_per_second=100e9,
        rtt_mean_max_s=0.005,
        trials_max_count=30,
    )

    def slow_above_40g(offered: float, index: int) -> TrialResult:
        result = capped(80e9)(offered, index)
        return result.model_copy(update={"rtt_mean_s": 0.001 if offered < 40e9 else 0.05})

    answer = search_answer(question, SPEC, run_search(question, slow_above_40g))
    assert answer.highest_bits_per_second is not None
    assert 39e9 <= answer.highest_bits_per_second < 40e9
    silent = TrialResult(index=0, received_bits_per_second=1e9, completeness_ratio=1.0)
    assert loss_ratio(question, SPEC, silent, 1e9) > question.shortfall_max_ratio


def test_missing_data_counts_as_loss() -> None:
    thin = TrialResult(index=0, received_bits_per_second=100e9, completeness_ratio=0.5)
    assert loss_ratio(QUESTION, SPEC, thin, 100e9) == 1.0
    assert loss_ratio(QUESTION, SPEC, TrialResult(index=0, problem="no agents"), 100e9) == 1.0


def test_rate_above_a_failed_rate_is_not_the_result() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, trials_max_count=6)

    def non_monotonic(offered: float, index: int) -> TrialResult:
        received = offered if offered > 60e9 and index > 0 else min(offered, 20e9)
        return TrialResult(index=index, received_bits_per_second=received, completeness_ratio=1.0)

    answer = search_answer(question, SPEC, run_search(question, non_monotonic))
    failing = answer.lowest_failing_bits_per_second
    assert failing is not None
    assert answer.highest_bits_per_second is None or answer.highest_bits_per_second < failing


@pytest.mark.parametrize(
    ("broken", "why", "phrase"),
    [
        ({"received_bits_per_second": 50e9}, FailingReason.BROKE, "did not"),
        ({"received_bits_per_second": None}, FailingReason.UNMEASURED, "was not measured"),
        ({"completeness_ratio": 0.5}, FailingReason.UNMEASURED, "was not measured"),
        ({"completeness_ratio": None}, FailingReason.UNMEASURED, "was not measured"),
        ({"received_bits_per_second": 1e12, "rtt_mean_s": 0.5}, FailingReason.BROKE, "did not"),
        (
            {"received_bits_per_second": 1e12, "rtt_mean_s": None},
            FailingReason.UNKNOWN,
            "is not known to meet",
        ),
        ({"received_bits_per_second": 0.5e9, "rtt_mean_s": None}, FailingReason.BROKE, "did not"),
    ],
)
def test_unmeasured_rate_is_not_reported_as_failed(
    broken: dict[str, float | None], why: FailingReason, phrase: str
) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, rtt_mean_max_s=0.01)
    study = StudySpec(name="s", question=question, spec=SPEC)

    def device(offered: float, index: int) -> TrialResult:
        result = capped(500e9)(offered, index)
        return result.model_copy(update=broken) if offered > 98e9 else result

    text = conclude(study, run_search(question, device))
    assert text.search_result is not None and text.search_result.lowest_failing_why is why
    assert f"; {text.search_result.lowest_failing_bits_per_second / 1e9:.4g} Gbit/s {phrase}" in (  # type: ignore[operator]
        text.sentence
    )

    def slow(offered: float, index: int) -> TrialResult:
        result = capped(0.9e9)(offered, index)
        return result.model_copy(update=broken) if offered == 1e9 else result

    low = conclude(study, run_search(question, slow)).sentence
    assert low.startswith("no load is known") == (why is not FailingReason.BROKE)
    assert why is FailingReason.BROKE or f"; 1 Gbit/s {phrase}" in low


UDP = RunSpec(
    scenario="search",
    pairs_count=30,
    traffic=Traffic(protocol=Protocol.UDP, streams_count=1, stream_bits_per_second=10**9),
)


def sending(
    cap_bits_per_second: float,
    *,
    paced_ratio: float = 1.0,
    most_bits_per_second: float = 1e12,
    udp: bool = False,
    bottleneck: BottleneckName = BottleneckName.UNKNOWN,
) -> Device:
    """Return a device with a cap. The senders have a maximum rate and inexact pacing."""

    def measure(offered: float, index: int) -> TrialResult:
        sent = min(offered * paced_ratio, most_bits_per_second)
        received = min(sent, cap_bits_per_second)
        lost = 1 - received / sent
        return TrialResult(
            index=index,
            sent_bits_per_second=sent if udp else received,
            received_bits_per_second=received,
            loss_ratio=lost if udp else None,
            retransmit_ratio=None if udp else 0.02 * (lost > 0),
            completeness_ratio=1.0,
            bottleneck=bottleneck,
        )

    return measure


@pytest.mark.parametrize("spec", [SPEC, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("threshold", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("paced_low", [0.0, 0.001, 0.003, 0.01])
def test_low_pacing_is_not_counted_as_loss(
    spec: RunSpec, threshold: float, paced_low: float
) -> None:
    question = Search(
        min_bits_per_second=1e9, max_bits_per_second=100e9, shortfall_max_ratio=threshold
    )
    device = sending(60e9, paced_ratio=1 - paced_low, udp=spec is UDP)
    answer = search_answer(question, spec, run_search(question, device, spec))
    sent = answer.highest_sent_bits_per_second
    assert sent is not None
    assert 60e9 * 0.97 <= sent <= 60e9 / (1 - threshold) * 1.0001
    assert answer.lowest_failing_why is FailingReason.BROKE


def test_single_lost_datagram_is_not_zero_loss() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=4e9, shortfall_max_ratio=0)
    clean = sending(1e12, udp=True)

    def one_lost(offered: float, index: int) -> TrialResult:
        result = clean(offered, index)
        return result.model_copy(update={"loss_ratio": 1e-7}) if offered > 2e9 else result

    answer = search_answer(question, UDP, run_search(question, one_lost, UDP))
    assert answer.highest_bits_per_second is not None
    assert answer.highest_bits_per_second <= 2e9
    assert answer.lowest_failing_why is FailingReason.BROKE


def test_zero_loss_is_unknown_without_datagram_counts() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=4e9, shortfall_max_ratio=0)
    clean = sending(1e12, udp=True)

    def uncounted(offered: float, index: int) -> TrialResult:
        return clean(offered, index).model_copy(update={"loss_ratio": None})

    answer = search_answer(question, UDP, run_search(question, uncounted, UDP))
    assert answer.highest_bits_per_second is None
    assert answer.lowest_failing_why is FailingReason.UNKNOWN


@pytest.mark.parametrize("spec", [SPEC, UDP], ids=["tcp", "udp"])
def test_sender_limit_is_reported_as_generator_limit(spec: RunSpec) -> None:
    device = sending(
        1e12, most_bits_per_second=40e9, udp=spec is UDP, bottleneck=BottleneckName.CLIENT_CPU
    )
    study = StudySpec(name="s", question=QUESTION, spec=spec)
    text = conclude(study, run_search(QUESTION, device, spec))
    assert text.search_result is not None
    assert text.search_result.lowest_failing_why is FailingReason.GENERATOR
    assert text.search_result.highest_sent_bits_per_second == pytest.approx(40e9, rel=0.03)
    assert "the generator was the limit, not the device" in text.sentence


def test_tcp_shortfall_is_a_limit_of_the_device() -> None:
    """A TCP sender will adapt to the path, so the sent rate is lower too."""
    answer = search_answer(QUESTION, SPEC, run_search(QUESTION, sending(40e9)))
    assert answer.lowest_failing_why is FailingReason.BROKE
    assert answer.highest_sent_bits_per_second == pytest.approx(40e9, rel=0.03)


def test_host_cpu_is_not_the_limit_with_path_loss() -> None:
    """When the sender is limited by the CPU, it does not have to retransmit."""
    device = sending(40e9, bottleneck=BottleneckName.CLIENT_CPU)

    def dropping(offered: float, index: int) -> TrialResult:
        result = device(offered, index)
        return result.model_copy(update={"retransmit_ratio": 0.005 if offered > 40e9 else 0.0})

    answer = search_answer(QUESTION, SPEC, run_search(QUESTION, dropping))
    assert answer.lowest_failing_why is FailingReason.BROKE


def test_tcp_retransmissions_count_as_loss() -> None:
    result = sending(1e12)(10e9, 0).model_copy(update={"retransmit_ratio": 0.02})
    assert loss_ratio(QUESTION, SPEC, result, 10e9) == pytest.approx(0.02)
    in_flight = sending(1e12)(10e9, 0).model_copy(
        update={"received_bits_per_second": 9.999e9, "rtt_mean_s": 0.02}
    )
    assert loss_ratio(QUESTION, SPEC, in_flight, 10e9) == 0
    half = in_flight.model_copy(update={"received_bits_per_second": 5e9})
    assert loss_ratio(QUESTION, SPEC, half, 10e9) == pytest.approx(0.5, abs=0.01)
