"""The search on simulated devices: exact bounds, restarts, and no answer from missing data."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import LimiterName
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.search import loss_ratio, search_answer
from broadside.coordinator.studies.study import Search, StudySpec, TrialResult, Why
from broadside.coordinator.studies.trials import next_trial
from broadside.exchange.messages import Protocol, Traffic

SPEC = RunSpec(scenario="search", pairs_count=30)
QUESTION = Search(min_bits_per_second=1e9, max_bits_per_second=100e9)
Device = Callable[[float, int], TrialResult]


def capped(cap_bits_per_second: float) -> Device:
    """A device that carries up to its cap."""

    def measure(offered: float, index: int) -> TrialResult:
        received = min(offered, cap_bits_per_second)
        return TrialResult(
            index=index, received_bits_per_second=received, completeness_ratio=1.0, rtt_mean_s=0.001
        )

    return measure


def carry_out(question: Search, device: Device, spec: RunSpec = SPEC) -> list[TrialResult]:
    study = StudySpec(name="s", question=question, spec=spec)
    results: list[TrialResult] = []
    while (trial := next_trial(study, results)) is not None:
        assert trial.offered_bits_per_second is not None
        results.append(device(trial.offered_bits_per_second, trial.index))
    return results


@settings(max_examples=60, deadline=None)
@given(cap=st.floats(2e9, 98e9), precision=st.sampled_from([0.01, 0.02, 0.1]))
def test_the_cap_lies_between_the_bounds_and_they_are_as_close_as_asked(
    cap: float, precision: float
) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, precision_ratio=precision)
    results = carry_out(question, capped(cap))
    answer = search_answer(question, SPEC, results)
    assert answer.highest_bits_per_second is not None
    assert answer.lowest_failing_bits_per_second is not None
    goal = question.shortfall_max_ratio
    assert answer.highest_bits_per_second * (1 - goal) <= cap * (1 + 1e-6)
    assert answer.lowest_failing_bits_per_second * (1 - goal) > cap * (1 - 1e-6)
    assert answer.width_ratio is not None
    assert answer.width_ratio <= precision * 1.01


@settings(max_examples=20, deadline=None)
@given(cap=st.floats(2e9, 99e9))
def test_a_search_that_starts_over_from_its_results_goes_on_as_before(cap: float) -> None:
    results = carry_out(QUESTION, capped(cap))
    study = StudySpec(name="s", question=QUESTION, spec=SPEC)
    offers = [next_trial(study, results[:count]) for count in range(len(results))]
    assert [trial.index for trial in offers if trial] == list(range(len(results)))
    assert next_trial(study, results) is None


def test_the_whole_range_holding_and_none_of_it() -> None:
    stored = search_answer(QUESTION, SPEC, carry_out(QUESTION, capped(500e9)))
    assert stored.highest_bits_per_second == 100e9
    assert stored.lowest_failing_bits_per_second is None
    none = search_answer(QUESTION, SPEC, carry_out(QUESTION, capped(0.1e9)))
    assert none.highest_bits_per_second is None
    assert none.lowest_failing_bits_per_second == 1e9


def test_an_rtt_goal_lowers_the_answer_and_an_unknown_rtt_does_not_keep_it() -> None:
    question = Search(
        min_bits_per_second=1e9,
        max_bits_per_second=100e9,
        rtt_mean_max_s=0.005,
        trials_max_count=30,
    )

    def slow_above_40g(offered: float, index: int) -> TrialResult:
        result = capped(80e9)(offered, index)
        return result.model_copy(update={"rtt_mean_s": 0.001 if offered < 40e9 else 0.05})

    answer = search_answer(question, SPEC, carry_out(question, slow_above_40g))
    assert answer.highest_bits_per_second is not None
    assert 39e9 <= answer.highest_bits_per_second < 40e9
    silent = TrialResult(index=0, received_bits_per_second=1e9, completeness_ratio=1.0)
    assert loss_ratio(question, SPEC, silent, 1e9) > question.shortfall_max_ratio


def test_missing_data_is_a_lost_trial() -> None:
    thin = TrialResult(index=0, received_bits_per_second=100e9, completeness_ratio=0.5)
    assert loss_ratio(QUESTION, SPEC, thin, 100e9) == 1.0
    assert loss_ratio(QUESTION, SPEC, TrialResult(index=0, problem="no agents"), 100e9) == 1.0


def test_a_load_that_held_above_one_that_failed_is_not_the_answer() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, trials_max_count=6)

    def odd(offered: float, index: int) -> TrialResult:
        received = offered if offered > 60e9 and index > 0 else min(offered, 20e9)
        return TrialResult(index=index, received_bits_per_second=received, completeness_ratio=1.0)

    answer = search_answer(question, SPEC, carry_out(question, odd))
    failing = answer.lowest_failing_bits_per_second
    assert failing is not None
    assert answer.highest_bits_per_second is None or answer.highest_bits_per_second < failing


@pytest.mark.parametrize(
    ("broken", "why", "words"),
    [
        ({"received_bits_per_second": 50e9}, Why.BROKE, "did not"),
        ({"received_bits_per_second": None}, Why.UNMEASURED, "was not measured"),
        ({"completeness_ratio": 0.5}, Why.UNMEASURED, "was not measured"),
        ({"completeness_ratio": None}, Why.UNMEASURED, "was not measured"),
        ({"received_bits_per_second": 1e12, "rtt_mean_s": 0.5}, Why.BROKE, "did not"),
        (
            {"received_bits_per_second": 1e12, "rtt_mean_s": None},
            Why.UNKNOWN,
            "is not known to meet",
        ),
        ({"received_bits_per_second": 0.5e9, "rtt_mean_s": None}, Why.BROKE, "did not"),
    ],
)
def test_a_rate_that_was_not_measured_is_not_said_to_have_failed(
    broken: dict[str, float | None], why: Why, words: str
) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, rtt_mean_max_s=0.01)
    study = StudySpec(name="s", question=question, spec=SPEC)

    def device(offered: float, index: int) -> TrialResult:
        result = capped(500e9)(offered, index)
        return result.model_copy(update=broken) if offered > 98e9 else result

    text = conclude(study, carry_out(question, device))
    assert text.found is not None and text.found.lowest_failing_why is why
    assert f"; {text.found.lowest_failing_bits_per_second / 1e9:.4g} Gbit/s {words}" in (  # type: ignore[operator]
        text.sentence
    )

    def slow(offered: float, index: int) -> TrialResult:
        result = capped(0.9e9)(offered, index)
        return result.model_copy(update=broken) if offered == 1e9 else result

    low = conclude(study, carry_out(question, slow)).sentence
    assert low.startswith("no rate is known") == (why is not Why.BROKE)
    assert why is Why.BROKE or f"; 1 Gbit/s {words}" in low


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
    limiter: LimiterName = LimiterName.UNKNOWN,
) -> Device:
    """A device with a cap behind senders that pace low, and send no more than they can."""

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
            limiter=limiter,
        )

    return measure


@pytest.mark.parametrize("spec", [SPEC, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("goal", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("paced_low", [0.0, 0.001, 0.003, 0.01])
def test_a_sender_that_paces_low_loses_nothing(
    spec: RunSpec, goal: float, paced_low: float
) -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=100e9, shortfall_max_ratio=goal)
    device = sending(60e9, paced_ratio=1 - paced_low, udp=spec is UDP)
    answer = search_answer(question, spec, carry_out(question, device, spec))
    sent = answer.highest_sent_bits_per_second
    assert sent is not None
    assert 60e9 * 0.97 <= sent <= 60e9 / (1 - goal) * 1.0001
    assert answer.lowest_failing_why is Why.BROKE


def test_one_datagram_of_ten_million_is_no_zero_loss() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=4e9, shortfall_max_ratio=0)
    clean = sending(1e12, udp=True)

    def one_lost(offered: float, index: int) -> TrialResult:
        result = clean(offered, index)
        return result.model_copy(update={"loss_ratio": 1e-7}) if offered > 2e9 else result

    answer = search_answer(question, UDP, carry_out(question, one_lost, UDP))
    assert answer.highest_bits_per_second is not None
    assert answer.highest_bits_per_second <= 2e9
    assert answer.lowest_failing_why is Why.BROKE


def test_without_a_count_of_datagrams_zero_loss_is_not_known() -> None:
    question = Search(min_bits_per_second=1e9, max_bits_per_second=4e9, shortfall_max_ratio=0)
    clean = sending(1e12, udp=True)

    def uncounted(offered: float, index: int) -> TrialResult:
        return clean(offered, index).model_copy(update={"loss_ratio": None})

    answer = search_answer(question, UDP, carry_out(question, uncounted, UDP))
    assert answer.highest_bits_per_second is None
    assert answer.lowest_failing_why is Why.UNKNOWN


@pytest.mark.parametrize("spec", [SPEC, UDP], ids=["tcp", "udp"])
def test_a_sender_that_cannot_offer_the_load_is_its_own_finding(spec: RunSpec) -> None:
    device = sending(
        1e12, most_bits_per_second=40e9, udp=spec is UDP, limiter=LimiterName.CLIENT_CPU
    )
    study = StudySpec(name="s", question=QUESTION, spec=spec)
    text = conclude(study, carry_out(QUESTION, device, spec))
    assert text.found is not None
    assert text.found.lowest_failing_why is Why.GENERATOR
    assert text.found.highest_sent_bits_per_second == pytest.approx(40e9, rel=0.03)
    assert "the generator was the limit, not the device" in text.sentence


def test_tcp_that_the_device_holds_back_is_the_devices_limit() -> None:
    """It sends what arrives, so that the shortfall is what it did not send."""
    answer = search_answer(QUESTION, SPEC, carry_out(QUESTION, sending(40e9)))
    assert answer.lowest_failing_why is Why.BROKE
    assert answer.highest_sent_bits_per_second == pytest.approx(40e9, rel=0.03)


def test_busy_hosts_are_not_the_limit_where_the_path_drops() -> None:
    """The run named a host's CPU, but a sender that its own CPU limits loses nothing."""
    device = sending(40e9, limiter=LimiterName.CLIENT_CPU)

    def dropping(offered: float, index: int) -> TrialResult:
        result = device(offered, index)
        return result.model_copy(update={"retransmit_ratio": 0.005 if offered > 40e9 else 0.0})

    answer = search_answer(QUESTION, SPEC, carry_out(QUESTION, dropping))
    assert answer.lowest_failing_why is Why.BROKE


def test_what_tcp_sends_again_counts_as_lost() -> None:
    result = sending(1e12)(10e9, 0).model_copy(update={"retransmit_ratio": 0.02})
    assert loss_ratio(QUESTION, SPEC, result, 10e9) == pytest.approx(0.02)
    in_flight = sending(1e12)(10e9, 0).model_copy(
        update={"received_bits_per_second": 9.999e9, "rtt_mean_s": 0.02}
    )
    assert loss_ratio(QUESTION, SPEC, in_flight, 10e9) == 0
    half = in_flight.model_copy(update={"received_bits_per_second": 5e9})
    assert loss_ratio(QUESTION, SPEC, half, 10e9) == pytest.approx(0.5, abs=0.01)
