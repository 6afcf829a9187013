"""Compare a summary or conclusion with the planted values, without side effects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.studies.study import Study
from tests.scenarios.cases import TESTBEDS, Case, Expected
from tests.scenarios.scenario_table import Row

# MB per unit of bytes.
MEGA: Final = {"k": 1e-3, "M": 1.0, "G": 1e3}
# Ratio of frames to payload. Large segments are counted with one header, full-size packets with one
# header each.
SUM_LOW, SUM_HIGH = 0.99, 1.07
# IP bytes per payload byte for full segments with timestamps.
HEADERS: Final = 1.0359
# Limit for the time of a unit's change, before and after the command that makes it.
DATED_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Values of a summary or conclusion that are compared with the expected ones.

    Attributes:
        found_at_s: Collapse of the fleet, epoch s.
        fell_at_s: Failures or pauses of the device, epoch s.
        burst_s: Start and end of the first burst, epoch s.
        window_s: Start and end of the measured window, epoch s.
        spikes_s: Start and end of latency spikes in the burst, epoch s.
        problems: Problems of a study's trials.
        steps_s: Capacity steps, epoch s.
        unit_bits_per_second: Measured payload rate that one unit adds.
        event_s: Start and end of the event of a drill, epoch s.
        outage: Start (epoch s) and length (s) of an outage by probes.
        shares: Measured share of each device.
        counted_shares: Share of each device as the kernel counted.
        devices_ratio: Sum of the devices' bytes relative to the fleet's payload.
        traffic_s: Duration of the first burst.
        stop_spread_s: Time between the stops of the first and the last pair, if it ended early.
        found: Highest load of a search.
        fall_ratio: Rate of the fleet after a collapse, relative to the one before.
    """

    bottleneck: str | None = None
    words: str = ""
    cost_ratio: float | None = None
    knees: tuple[float, ...] = ()
    found_at_s: float | None = None
    fell_at_s: tuple[float, ...] = ()
    burst_s: tuple[float, float] = (0.0, 0.0)
    window_s: tuple[float, float] = (0.0, 0.0)
    spikes_s: tuple[tuple[float, float], ...] = ()
    problems: tuple[str, ...] = ()
    steps_s: tuple[float, ...] = ()
    unit_bits_per_second: float | None = None
    event_s: tuple[float, float] | None = None
    outage: tuple[float, float] | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    counted_shares: Mapping[str, float] = field(default_factory=dict)
    devices_ratio: float | None = None
    traffic_s: int | None = None
    stop_spread_s: float | None = None
    found: float | None = None
    fall_ratio: float | None = None

    @classmethod
    def of_run(cls, summary: RunSummary) -> "Facts":
        details = summary.bottleneck_details
        text = " ".join(finding.model_dump_json() for finding in summary.findings)
        burst = summary.bursts[0]
        cliff, latency = burst.cliff, burst.latency
        carried = burst.device.in_bits_per_second if burst.device is not None else None
        payload = RECEIVED.of_burst(burst)
        return cls(
            bottleneck=summary.bottleneck.value,
            words=f"{text} {details}",
            found_at_s=None if cliff is None else cliff.at.timestamp(),
            fall_ratio=(
                None
                if cliff is None
                else cliff.after_bits_per_second / cliff.before_bits_per_second
            ),
            burst_s=(burst.planned_start_at.timestamp(), burst.planned_end_at.timestamp()),
            window_s=(
                (burst.window.start_at.timestamp(), burst.window.end_at.timestamp())
                if burst.window is not None
                else (0.0, 0.0)
            ),
            spikes_s=tuple(
                (spike.from_at.timestamp(), spike.to_at.timestamp())
                for spike in (latency.spikes if latency else ())
            ),
            shares={device.device: device.share_ratio or 0.0 for device in burst.devices},
            devices_ratio=carried.mean / payload if carried and payload else None,
            traffic_s=burst.duration_s,
            stop_spread_s=None if burst.early_end is None else burst.early_end.stop_spread_s,
        )

    @classmethod
    def of_study(cls, study: Study) -> "Facts":
        conclusion = study.conclusion
        problems = tuple(result.problem for result in study.results if result.problem is not None)
        if conclusion is None:
            return cls(words=study.problem or "", problems=problems)
        metrics = conclusion.comparison.metrics if conclusion.comparison else ()
        grown, drilled = conclusion.scale_out, conclusion.drilled
        unit = grown.unit_bits_per_second if grown else None
        out_at = drilled.outage_from_at if drilled else None
        received = [m for m in metrics if m.name == "received_bits_per_second"]
        event = drilled.event if drilled else None
        began_at, ended_at = (event.started_at, event.ended_at) if event else (None, None)
        answer = conclusion.search_result
        limit = None if answer is None else answer.lowest_failing_bottleneck
        return cls(
            bottleneck=None if limit is None else limit.value,
            found=None if answer is None else answer.highest,
            words=" ".join((conclusion.sentence, *conclusion.notes)),
            cost_ratio=received[0].ratio if received else None,
            knees=tuple(knee.value for knee in conclusion.knees),
            problems=problems,
            steps_s=tuple(step.at.timestamp() for step in grown.steps) if grown else (),
            unit_bits_per_second=None if unit is None else unit / study.spec.spec.scale,
            event_s=(
                (began_at.timestamp(), ended_at.timestamp()) if began_at and ended_at else None
            ),
            outage=((out_at.timestamp(), drilled.outage_s or 0.0) if drilled and out_at else None),
        )


def faults(case: Case, row: Row, facts: Facts, earlier: Mapping[str, Row]) -> Iterator[str]:
    """Yield one line for each expectation of a case that is not met."""
    expected = case.expected
    yield from facts.problems
    for trial in row.trials or (row,):
        yield from _unsound(trial, expected)
        yield from _device_faults(trial, expected.told)
        yield from _unit_change(trial, facts, expected.unit_change)
    if expected.lost_says is not None and expected.lost_says not in " ".join(row.lost):
        yield f"no pair was lost to {expected.lost_says!r}"
    yield from _modes(expected.modes, row.trials)
    yield from _connections(row, facts, expected)
    yield from _early_end(facts, expected)
    if expected.cpu_within is not None:
        yield from _cpu(row.trials, expected.cpu_within)
    if expected.share is not None and row.payload_bits_per_second is not None:
        low, high = expected.share
        most = row.pairs_count * TESTBEDS[case.testbed].nic_bits_per_second
        share = row.payload_bits_per_second / most
        if not low <= share <= high:
            yield f"{share:.2f} of the NICs' rate, planted {low:g} to {high:g}"
    if expected.bottleneck is not None and facts.bottleneck != expected.bottleneck:
        yield f"bottleneck {facts.bottleneck}, planted {expected.bottleneck}"
    if expected.trials_not_limited_by is not None:
        yield from _limited_by(expected.trials_not_limited_by, row.trials)
    if expected.says is not None and expected.says not in facts.words:
        yield f"nothing says {expected.says!r}"
    if expected.cost_ratio is not None:
        low, high = expected.cost_ratio
        if facts.cost_ratio is None or not low <= facts.cost_ratio <= high:
            yield f"b / a is {facts.cost_ratio}, planted {low:g} to {high:g}"
    if expected.knee is not None:
        low, high = expected.knee
        if not any(low <= knee <= high for knee in facts.knees):
            yield f"knees at {facts.knees or 'none'}, planted {low:g} to {high:g}"
    if expected.product_megabytes is not None:
        match = re.search(r"bandwidth-delay product .* is ([\d.]+) ([kMG])B per pair", facts.words)
        megabytes = None if match is None else float(match[1]) * MEGA[match[2]]
        if megabytes is None or abs(megabytes / expected.product_megabytes - 1) > 0.15:
            yield f"BDP {megabytes} MB, planted {expected.product_megabytes:g} MB"
    if expected.fall_within_s is not None:
        gap_s = [abs(at_s - (facts.found_at_s or 0.0)) for at_s in facts.fell_at_s]
        if not gap_s or min(gap_s) > expected.fall_within_s:
            yield f"collapse found at {facts.found_at_s}, planted at {facts.fell_at_s or 'none'}"
    if expected.pauses_within_s is not None:
        yield from _pauses(facts, expected.pauses_within_s)
    if expected.steps_within_s is not None:
        yield from _steps(facts, expected.steps_within_s)
    if expected.step_ratio is not None:
        planted = expected.step_ratio * TESTBEDS[case.testbed].firewall_bits_per_second / HEADERS
        unit = facts.unit_bits_per_second
        if unit is None or abs(unit / planted - 1) > 0.05:
            yield f"a step adds {unit} bit/s, planted {planted:g}"
    if expected.outage_within_s is not None:
        yield from _outage(facts, expected.outage_within_s)
    if expected.shares_within is not None:
        yield from _shares(facts, expected.shares_within)
    if expected.rate_ratio_of is not None:
        other, low, high = expected.rate_ratio_of
        base = earlier[other].payload_bits_per_second if other in earlier else None
        if not base:
            why = "has no rate" if other in earlier else "did not run"
            yield f"cannot be held against {other!r}, which {why}"
        elif row.payload_bits_per_second:
            ratio = row.payload_bits_per_second / base
            if not low <= ratio <= high:
                yield f"{ratio:.2f} of {other!r}, planted {low:g} to {high:g}"


def _early_end(facts: Facts, expected: Expected) -> Iterator[str]:
    """Yield the values of a burst with ``objective.stop`` that differ from the expected ones."""
    if expected.traffic_s is not None:
        low, high = expected.traffic_s
        if not low <= (facts.traffic_s or 0) <= high:
            yield f"the burst has {facts.traffic_s} s, expected {low} to {high} s"
    limit_s = expected.stop_spread_max_s
    if limit_s is not None and (facts.stop_spread_s is None or facts.stop_spread_s >= limit_s):
        yield f"the pairs stopped within {facts.stop_spread_s} s, expected below {limit_s:g} s"


def _connections(row: Row, facts: Facts, expected: Expected) -> Iterator[str]:
    """Yield a search that did not find the planted limit, and sessions that do not agree."""
    if expected.found is not None:
        planted, within = expected.found
        if facts.found is None or abs(facts.found / planted - 1) > within:
            yield f"found {facts.found}, planted {planted:g} within {within:.1%}"
    if expected.fall_to is not None:
        ratio, within = expected.fall_to
        if facts.fall_ratio is None or abs(facts.fall_ratio / ratio - 1) > within:
            yield f"the rate fell to {facts.fall_ratio}, planted {ratio:g} within {within:.0%}"
    if expected.sessions_within is not None:
        for trial in row.trials or (row,):
            for name in ("set_up", "ended"):
                residual = trial.device.get(f"device_{name}_residual_ratio")
                if residual is None or abs(residual) > expected.sessions_within:
                    yield f"{trial.name}: sessions {name}: residual {residual}"


def _unsound(row: Row, expected: Expected) -> Iterator[str]:
    """Yield the reasons that a run or trial is not a valid measurement."""
    name = f"{row.name}: "
    sound = ("pass", "measured") if expected.verdict == "pass" else expected.verdict.split(" or ")
    # A case without a target has the verdict measured.
    if row.verdict not in sound:
        yield f"{name}verdict {row.verdict or 'none'}, expected {expected.verdict}"
        yield from row.problems
    low, high = expected.completeness
    if row.completeness_ratio is None or not low <= row.completeness_ratio <= high:
        yield f"{name}completeness {row.completeness_ratio}, expected {low:g} to {high:g}"
        yield from row.lost
    # A run that may be stopped in its first second needs no rate.
    if low > 0 and not row.payload_bits_per_second and row.engine != "connections":
        yield f"{name}no rate"


def _device_faults(row: Row, planted: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield the device metrics that differ from the planted values."""
    for name, (low, high) in planted.items():
        value = row.device.get(name)
        if value is None or not low <= value <= high:
            yield f"{row.name}: {name} is {value}, planted {low:g} to {high:g}"


def _unit_change(row: Row, facts: Facts, planted: str | None) -> Iterator[str]:
    """Yield a line unless the run has the planted change only, and at the time of the event."""
    if planted is None:
        return
    began_s, ended_s = facts.event_s or (0.0, 0.0)
    names = [name for name, _ in row.unit_changes]
    dated = all(
        began_s - DATED_WITHIN_S <= at_s <= ended_s + DATED_WITHIN_S for _, at_s in row.unit_changes
    )
    if names != [planted] or not dated:
        yield f"{row.name}: changes {row.unit_changes}, planted {planted} in {facts.event_s}"


def _shares(facts: Facts, within: float) -> Iterator[str]:
    """Yield the device shares that differ from the kernel's counters or do not add up."""
    if len(facts.shares) < 2 or facts.shares.keys() != facts.counted_shares.keys():
        yield f"shares of {list(facts.shares) or 'none'}, counted {list(facts.counted_shares)}"
        return
    for device, counted in facts.counted_shares.items():
        if abs(facts.shares[device] - counted) > within:
            yield f"{device} has {facts.shares[device]:.3f} of all, counted {counted:.3f}"
    ratio = facts.devices_ratio
    if ratio is None or not SUM_LOW <= ratio <= SUM_HIGH:
        yield f"the devices report {ratio} of the payload, planted {SUM_LOW:g} to {SUM_HIGH:g}"


def _limited_by(name: str, trials: Sequence[Row]) -> Iterator[str]:
    """Yield the trials that name a limit although none of them reaches it."""
    if not trials:
        yield "no trial has a verdict"
    for trial in trials:
        if trial.bottleneck == name:
            yield f"{trial.name}: bottleneck {name}, which is not planted"


def _modes(planted: Mapping[str, tuple[float, float]], trials: Sequence[Row]) -> Iterator[str]:
    """Yield the modes with a wrong rate relative to the first mode."""
    rates = {row.name.rpartition(" ")[2]: row.payload_bits_per_second for row in trials}
    base = trials[0].payload_bits_per_second if trials else None
    for mode, (low, high) in planted.items():
        rate = rates.get(mode)
        ratio = rate / base if rate and base else None
        if ratio is None or not low <= ratio <= high:
            yield f"{mode} is at {ratio} of the first mode's rate, planted {low:g} to {high:g}"


def _cpu(trials: Sequence[Row], within: float) -> Iterator[str]:
    """Yield the devices with CPU that differs from the kernel's or does not rise with the mode."""
    for trial in trials:
        if not trial.cpu_counted or trial.cpu.keys() != trial.cpu_counted.keys():
            yield f"{trial.name}: CPU of {[*trial.cpu]}, counted of {[*trial.cpu_counted]}"
            return
        for device, counted in trial.cpu_counted.items():
            if abs(trial.cpu[device] - counted) > within:
                yield f"{trial.name}: {device} at {trial.cpu[device]:.3f}, counted {counted:.3f}"
    for before, after in pairwise(trials):
        for device, busy in after.cpu.items():
            if busy <= before.cpu[device]:
                yield f"{after.name}: {device} at {busy:.3f}, no more than in {before.name}"


def _steps(facts: Facts, within_s: float) -> Iterator[str]:
    """Yield planted capacity growths without a step, and steps without a growth."""
    if len(facts.steps_s) != len(facts.fell_at_s) or not facts.steps_s:
        yield f"{len(facts.steps_s)} steps, planted {len(facts.fell_at_s)}"
    for result_s, planted_s in zip(facts.steps_s, facts.fell_at_s, strict=False):
        if abs(result_s - planted_s) > within_s:
            yield f"a step at {result_s:.1f}, planted at {planted_s:.1f}"


def _outage(facts: Facts, within_s: tuple[float, float]) -> Iterator[str]:
    """Compare the outage by probes with the times of failure and replacement of the device."""
    if facts.outage is None or len(facts.fell_at_s) != 2:
        yield f"outage {facts.outage}, planted at {facts.fell_at_s or 'no instant'}"
        return
    from_s, outage_s = facts.outage
    died_s, back_s = facts.fell_at_s
    if abs(outage_s - (back_s - died_s)) > within_s[0]:
        yield f"out for {outage_s:.3f} s, planted {back_s - died_s:.3f}"
    if abs(from_s - died_s) > within_s[1]:
        yield f"out from {from_s:.3f} on, planted {died_s:.3f}"


def _pauses(facts: Facts, within_s: float) -> Iterator[str]:
    """Yield planted pauses without a spike, and spikes without a pause."""
    begun_s, ended_s = facts.burst_s
    pauses_s = [at_s for at_s in facts.fell_at_s if begun_s + 1 <= at_s <= ended_s - 3]
    spikes_s = [spike for spike in facts.spikes_s if begun_s + 1 <= spike[0] <= ended_s - 3]
    if not pauses_s:
        yield "no pause was planted"
    for at_s in pauses_s:
        if not any(abs(from_s - at_s) <= within_s for from_s, _ in spikes_s):
            yield f"no spike at the pause of {at_s:.1f}: there are {spikes_s or 'none'}"
    for from_s, to_s in spikes_s:
        if not any(abs(from_s - at_s) <= within_s for at_s in facts.fell_at_s):
            yield f"a spike from {from_s:.1f} to {to_s:.1f}, planted were {pauses_s}"
