"""Build a report from the stored data of a run. Pure."""

from typing import Final

from broadside.coordinator.core.formatting import lab, rate, ratio
from broadside.coordinator.core.metrics import layer_label, received_at
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.views.charts import catalogue
from broadside.coordinator.views.report import evidence_sections as evidence
from broadside.coordinator.views.report import method_sections as method
from broadside.coordinator.views.report import result_sections as results
from broadside.coordinator.views.report import setup_sections as setup
from broadside.coordinator.views.report.document import ChartPlace, Report, Section
from broadside.coordinator.views.report.stored_source import Source

# Charts that need no measured seconds. The others would be empty.
_CHARTS_OF_MEANS: Final = ("throughput", "pairs", "starts", "reconciliation")
# Charts of the bursts after the first one.
_CHARTS_OF_LATER_BURSTS: Final = ("throughput", "heatmap", "pairs", "starts", "latency")
_MEANS_ONLY: Final = (
    "The imported table has one mean for each pair and burst. Charts by second show this mean. "
    "They do not show single seconds, ramps or gaps. Start errors have the resolution of the "
    "table."
)


def build(source: Source) -> Report:
    """Return the report with its sections in reading order."""
    sections = (
        results.headline_section(source),
        _charts(source),
        method.method_section(source),
        setup.planned_section(source),
        results.bursts_section(source),
        results.parts_section(source),
        results.guards_section(source),
        evidence.latency_section(source),
        results.pairs_section(source),
        setup.clocks_section(source),
        evidence.reconciliation_section(source),
        evidence.units_section(source),
        evidence.canary_section(source),
        results.completeness_section(source),
        evidence.trend_section(source),
        setup.configuration_section(source),
        setup.generators_section(source),
        setup.device_section(source),
        evidence.cost_section(source),
        method.deviations_section(source),
        method.recompute_section(source),
    )
    explained = explain_verdict(source.summary)
    return Report(
        run_id=source.plan.run_id,
        scenario=source.plan.spec.scenario,
        verdict=source.summary.verdict,
        reason=explained.reason,
        next_step=explained.next_step,
        headline=headline(source.summary),
        launched_by=source.header.created_by,
        launched_at=source.header.created_at,
        imported=source.imported,
        traffic_from_at=min(burst.planned_start_at for burst in source.plan.bursts),
        traffic_until_at=max(burst.planned_end_at for burst in source.plan.bursts),
        labels=dict(source.header.labels),
        generated_at=source.generated_at,
        broadside_version=source.broadside_version,
        summary_sha256=source.summary_sha256,
        findings=explained.findings,
        sections=tuple(section for section in sections if section is not None),
        plan=source.plan,
        summary=source.summary,
        price=source.price,
    )


def headline(summary: RunSummary) -> str:
    """Return the metrics behind the verdict in a few sentences."""
    measured = received_at(summary.target_layer).of_run(summary)
    if measured is None:
        text = "The received rate is unknown: the measured pairs have no second in common."
    else:
        text = f"The fleet received {rate(measured)} ({layer_label(summary.target_layer)}"
        if summary.scale != 1:
            text += f"; {lab(summary.scale)}, {rate(measured * summary.scale)} at real scale"
        target = summary.target_bits_per_second
        text += ")"
        text += f", {ratio(measured / target, 1)} of the target {rate(target)}." if target else "."
    if summary.verdict is Verdict.INCONCLUSIVE:
        text += " The data does not show whether the objective was met."
    if summary.verdict is Verdict.MEASURED:
        text += " No target was set, so the run neither passes nor fails."
    of_part = f" of {summary.part_names[0]}" if summary.part_names else ""
    return (
        f"{text} {summary.pairs_measured} of {summary.pairs_planned} pairs{of_part} were measured "
        "in all "
        f"bursts, {ratio(summary.completeness_ratio)} of the planned pair-seconds."
    )


def _charts(source: Source) -> Section:
    bursts, views = source.summary.bursts, source.views
    is_many = len(bursts) > 1
    is_shown = {
        "bursts": is_many,
        "completeness": is_many or source.summary.completeness_ratio < 1,
        "residuals": is_many and source.summary.reconciliation is not None,
    }
    chosen: list[tuple[str, int | None]] = [(name, None) for name in is_shown if is_shown[name]]
    entries = {entry.name: entry for entry in catalogue()}
    for view in views:
        missing = {
            "reconciliation": view.device_counter is None or view.summary.reconciliation is None,
            "latency": view.summary.latency is None,
            "device": view.telemetry is None,
            "parts": not view.summary.parts,
            "connections": "attempted" not in view.series.events,
            "connection-times": "handshake_p50_us" not in view.series.events,
        }
        chosen += [
            (name, view.summary.index)
            for name, entry in entries.items()
            if entry.kind == "burst"
            and not missing.get(name)
            and (view is views[0] or name in _CHARTS_OF_LATER_BURSTS)
            and (not source.means_only or name in _CHARTS_OF_MEANS)
        ]
    total = len(source.plan.bursts)
    text = "All bursts are shown. Gaps are seconds without data."
    if len(views) < total:
        shown = ", ".join(str(view.summary.index + 1) for view in views)
        text = (
            f"Bursts {shown} of {total} are shown: the first, the worst and the last. Gaps are "
            "seconds without data."
        )
    return Section(
        id="charts",
        title="Charts",
        paragraphs=(text, *((_MEANS_ONLY,) if source.means_only else ())),
        charts=tuple(
            ChartPlace(
                name=name,
                burst_index=index,
                title=entries[name].title
                + (f", burst {index + 1}" if index is not None and total > 1 else ""),
                description=entries[name].description,
            )
            for name, index in chosen
        ),
    )
