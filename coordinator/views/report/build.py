"""Build a report from the stored data of a run. Pure."""

from broadside.coordinator.core.formatting import lab, rate, ratio
from broadside.coordinator.core.metrics import RECEIVED, RECEIVED_IP, Layer
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.views.charts import catalogue
from broadside.coordinator.views.report import agent_sections as agents
from broadside.coordinator.views.report import course_sections as course
from broadside.coordinator.views.report import figure_sections as figures
from broadside.coordinator.views.report import latency_section as latency
from broadside.coordinator.views.report import ledger_section as ledgers
from broadside.coordinator.views.report import method_sections as method
from broadside.coordinator.views.report.document import ChartPlace, Report, Section
from broadside.coordinator.views.report.stored_source import Source


def build(source: Source) -> Report:
    """Return the report with its sections in reading order."""
    sections = (
        figures.headline_section(source),
        _charts(source),
        method.method_section(source),
        agents.planned_section(source),
        figures.bursts_section(source),
        *latency.latency_sections(source),
        figures.pairs_section(source),
        agents.clocks_section(source),
        ledgers.reconciliation_section(source),
        figures.completeness_section(source),
        *course.course_sections(source),
        agents.configuration_section(source),
        agents.generators_section(source),
        method.device_section(source),
        *course.price_sections(source),
        method.deviations_section(source),
        method.recompute_section(source),
    )
    return Report(
        run_id=source.plan.run_id,
        scenario=source.plan.spec.scenario,
        verdict=source.summary.verdict,
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
        findings=source.summary.findings,
        sections=sections,
        plan=source.plan,
        summary=source.summary,
        price=source.price,
    )


def headline(summary: RunSummary) -> str:
    """Return the metrics behind the verdict in one or two sentences."""
    layer = summary.target_layer
    measured = (RECEIVED_IP if layer is Layer.IP else RECEIVED).of_run(summary)
    where = "the IP layer" if layer is Layer.IP else "payload"
    if measured is None:
        said = "The fleet's rate is unknown: the measured pairs share no second."
    else:
        said = f"The fleet's receivers saw {rate(measured)} at {where}"
        if summary.scale != 1:
            said += f" ({lab(summary.scale)}, standing for {rate(measured * summary.scale)})"
        target = summary.target_bits_per_second
        if target:
            said += f", {ratio(measured / target, 1)} of the target of {rate(target)}"
        said += "."
    if summary.verdict is Verdict.INCONCLUSIVE:
        said += " The data cannot say whether the objective was met."
    if summary.verdict is Verdict.MEASURED:
        said += " No target was set: this is a measurement, and nothing was passed or failed."
    return (
        f"{said} {summary.pairs_measured} of {summary.pairs_planned} pairs were measured in every "
        f"burst; {ratio(summary.completeness_ratio)} of the planned pair-seconds are on record."
    )


# Charts that need no measured seconds. The others would be empty.
_OF_MEANS = ("throughput", "pairs", "starts", "reconciliation")
_MEANS_ONLY = (
    "The imported table has one mean for each pair and burst. What is drawn second by second is "
    "that mean over the pair's time: it says nothing of single seconds, of ramps or of gaps within "
    "a burst. Starts are no finer than the table's times."
)


def _charts(source: Source) -> Section:
    entries = {entry.name: entry for entry in catalogue()}
    many = len(source.summary.bursts) > 1
    held = source.summary.reconciliation is not None
    chosen: list[tuple[str, int | None]] = []
    if many:
        chosen += [("bursts", None)]
        chosen += [("trend", None)] if len(source.summary.bursts) > 2 else []
    if many or source.summary.completeness_ratio < 1:
        chosen += [("completeness", None)]
    chosen += [("residuals", None)] if many and held else []
    for view in source.views:
        index = view.summary.index
        names = [entry.name for entry in catalogue() if entry.kind == "burst"]
        if view.ledger is None or view.summary.reconciliation is None:
            names.remove("reconciliation")
        if view.summary.latency is None:
            names.remove("latency")
        if index != source.views[0].summary.index:
            names = [
                name
                for name in names
                if name in ("throughput", "heatmap", "pairs", "starts", "latency")
            ]
        if source.means_only:
            names = [name for name in names if name in _OF_MEANS]
        chosen += [(name, index) for name in names]
    shown = ", ".join(str(view.summary.index + 1) for view in source.views)
    total = len(source.plan.bursts)
    said = (
        f"Of {total} bursts, {shown} are shown second by second: the first, the worst and the last."
        if len(source.views) < total
        else "Every burst is shown."
    )
    return Section(
        id="charts",
        title="Charts",
        paragraphs=(
            f"{said} A gap is a second that nobody saw. Every axis names its unit and layer.",
            *((_MEANS_ONLY,) if source.means_only else ()),
        ),
        charts=tuple(
            ChartPlace(
                name=name,
                burst_index=index,
                title=entries[name].title
                + (f", burst {index + 1}" if index is not None and total > 1 else ""),
                says=entries[name].says,
            )
            for name, index in chosen
        ),
    )
