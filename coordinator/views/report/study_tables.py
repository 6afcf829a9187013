"""Tables of a study for its report and for the terminal. Pure."""

from collections.abc import Iterator
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.measure.experiments.drill import DrillResult
from broadside.coordinator.core.measure.experiments.scale_out import ScaleOut
from broadside.coordinator.core.metrics import Layer, layer_label
from broadside.coordinator.studies.leak_curve import blocked_text
from broadside.coordinator.studies.study import Study, TrialResult
from broadside.coordinator.studies.trials import describe_trial
from broadside.coordinator.views.report.document import ReportTable, make_table

# Row limit. The longest outages are shown.
OUTAGES_MAX_COUNT: Final = 20


def study_tables(study: Study) -> Iterator[ReportTable]:
    """Yield the tables of trials, devices, and scale-out or drill results."""
    wanted = study.spec.spec.objective.layer
    # One layer for all trials: the payload if a trial of an older version has no other rate.
    layers = {trial.received_at(wanted)[1] for trial in study.results}
    layer = wanted if layers <= {wanted} else Layer.PAYLOAD
    yield make_table(
        study.results,
        {
            "trial": lambda trial: str(trial.index + 1),
            "settings": lambda trial: (
                _what(study, trial) + (" (knee)" if _is_knee(study, trial) else "")
            ),
            f"received, {layer_label(layer)}": lambda trial: formatting.rate(
                trial.received_at(layer)[0]
            ),
            "device counter, at its layer": lambda trial: formatting.rate(
                trial.firewall_bits_per_second
            ),
            "RTT": lambda trial: formatting.time(trial.rtt_mean_s),
            "CPU-s/GB, client / server": lambda trial: (
                f"{formatting.number(trial.client_cpu_s_per_gigabyte)} / "
                f"{formatting.number(trial.server_cpu_s_per_gigabyte)}"
            ),
            "pairs reset / stalled": lambda trial: (
                f"{trial.reset_pairs_count} / {trial.stalled_pairs_count}"
            ),
            **(
                {"still blocked": blocked_text}
                if any(trial.leak_ratio is not None for trial in study.results)
                else {}
            ),
            "bottleneck": lambda trial: trial.bottleneck.value,
            "verdict": lambda trial: (
                trial.problem or (trial.verdict.value if trial.verdict else formatting.UNKNOWN)
            ),
        },
        numeric_from=2,
        title="Trials, rates at real scale",
    )
    loads = [row for result in study.results for row in _devices(study, result)]
    if loads:
        yield ReportTable(
            title="Devices",
            columns=("trial", "settings", "device", "payload", "share", "CPU"),
            rows=tuple(loads),
            numeric_from=3,
        )
    if study.conclusion is not None and study.conclusion.scale_out is not None:
        yield _steps(study.conclusion.scale_out)
    if study.conclusion is not None and study.conclusion.drilled is not None:
        yield _outages(study.conclusion.drilled)


def study_state(study: Study) -> str:
    """Return the state of a study as text."""
    if study.ended_at is None:
        if study.cancelled_at is not None:
            return "being cancelled"
        return "running" if study.waits_for is None else f"waiting for {study.waits_for}"
    if study.problem:
        return f"failed: {study.problem}"
    if study.cancelled_at is not None:
        return f"cancelled by {study.cancelled_by}: {study.cancel_reason}"
    return "finished"


def _what(study: Study, result: TrialResult) -> str:
    return ", ".join(
        f"{name} {value}" for name, value in describe_trial(study.spec, result).items()
    )


def _is_knee(study: Study, result: TrialResult) -> bool:
    knees = study.conclusion.knees if study.conclusion else ()
    return any(knee.received_bits_per_second == result.received_bits_per_second for knee in knees)


def _devices(study: Study, result: TrialResult) -> Iterator[tuple[str, ...]]:
    known = [load.received_bits_per_second for load in result.devices]
    total = None if None in known else sum(rate for rate in known if rate is not None)
    for load in result.devices:
        rate = load.received_bits_per_second
        yield (
            str(result.index + 1),
            _what(study, result),
            load.device,
            formatting.rate(rate),
            formatting.ratio(rate / total if rate is not None and total else None, 1),
            formatting.ratio(load.cpu_ratio, 1),
        )


def _steps(result: ScaleOut) -> ReportTable:
    return make_table(
        result.steps,
        {
            "time since overload": lambda step: f"{step.after_overload_s:.1f} s",
            "before": lambda step: formatting.rate(step.before_bits_per_second),
            "after": lambda step: formatting.rate(step.after_bits_per_second),
            "step": lambda step: (
                f"{formatting.rate(step.size_bits_per_second)} ± "
                f"{formatting.rate(step.half_width_bits_per_second)}"
            ),
            "device counter (IP)": lambda step: formatting.rate(step.counter_size_bits_per_second),
            "retransmits": lambda step: formatting.count(step.retransmits_count),
            "RTT": lambda step: formatting.time(step.rtt_max_s),
            "pairs reset": lambda step: str(step.broken_pairs_count),
        },
        title="Steps",
        numeric_from=0,
    )


def _outages(result: DrillResult) -> ReportTable:
    shown = result.outages[:OUTAGES_MAX_COUNT]
    more = result.outages_count - len(shown)
    return make_table(
        shown,
        {
            "pair": lambda outage: outage.pair,
            "start, UTC": lambda outage: outage.from_at.strftime("%H:%M:%S.%f")[:-3],
            "duration": lambda outage: (
                f"{outage.outage_s * 1e3:.0f} ms ± {outage.resolution_s * 1e3:.0f}"
            ),
            "probes lost": lambda outage: str(outage.lost_count),
        },
        title="Outages measured by probes",
        note=f"{more} more are not listed." if more else None,
    )
