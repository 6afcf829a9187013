"""Generator of the Grafana dashboards in this folder.

Run it after a change of metrics or panels. The names of metrics come from
``coordinator/views/prometheus_metrics.py``. A test checks that the committed JSON is up to date,
that every query parses, and that every metric exists.
"""

from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import BigValueTextMode, GraphDrawStyle, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

HERE: Final = Path(__file__).parent
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
# The colours are those of coordinator/views/charts.
FLEET, LEDGER, TARGET = "#3274b5", "#c25e00", "#8e8e8e"
GREEN, RED = "#37872d", "#c4162a"
Board = dashboard.Dashboard


# Coordinators of one fleet report the same values, so queries use the maximum and not the sum.
def of_fleet(metric: str, by: str = "", matching: str = "") -> str:
    """Return the query of a fleet metric by labels, as the chosen coordinators report it."""
    chosen = ", ".join(filter(None, ['instance=~"$instance"', matching]))
    return f"max by ({by}) ({metric}{{{chosen}}})"


def of_run(metric: str, by: str = "", matching: str = "") -> str:
    """Return the query of a metric of the chosen run, while a coordinator reports that run."""
    chosen = ", ".join(filter(None, ['instance=~"$instance"', matching]))
    told = 'broadside_run_info{run_id=~"$run"}'
    return f"max by ({by}) ({metric}{{{chosen}}} and on (job, instance) {told})"


def query(expression: str, legend: str = "", *, instant: bool = False) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto")
    return made.instant() if instant else made


def lines(title: str, unit: str, says: str, *queries: prometheus.Dataquery) -> timeseries.Panel:
    """Return a time series panel that shows gaps in the data."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span_nulls(False)
        .line_width(2)
        .fill_opacity(0)
        .height(8)
        .span(12)
    )
    for each in queries:
        panel = panel.with_target(each)
    return panel


def stacked(title: str, says: str, *queries: prometheus.Dataquery) -> timeseries.Panel:
    return (
        lines(title, units.Short, says, *queries)
        .draw_style(GraphDrawStyle.BARS)
        .fill_opacity(70)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    )


def figure(
    title: str,
    unit: str,
    says: str,
    expression: str,
    bounds: dashboard.ThresholdsConfig | None = None,
) -> stat.Panel:
    """Return a panel with one number, or "unknown"."""
    panel = (
        stat.Panel()
        .title(title)
        .description(says)
        .datasource(SOURCE)
        .unit(unit)
        .no_value("unknown")
        .height(4)
        .span(4)
        .with_target(query(expression, instant=True))
    )
    return panel if bounds is None else panel.thresholds(bounds)


def limits(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Return thresholds with a colour from each value on."""
    made = [Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def verdict() -> stat.Panel:
    """Return the panel of the verdict, which is the name of the sample with value 1."""
    says = "Of the newest run, once it is over. While it goes on there is none."
    told = query(f"{of_run('broadside_run_verdict', 'verdict')} == 1", "{{verdict}}", instant=True)
    panel = stat.Panel().title("Verdict").description(says).datasource(SOURCE).height(4).span(4)
    return panel.no_value("not over").text_mode(BigValueTextMode.NAME).with_target(told)


def board(uid: str, title: str, says: str, *variables: dashboard.QueryVariable) -> Board:
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(says)
        .tags(["broadside"])
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("utc")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )
    first = chooser("instance", "Coordinator", "broadside_build_info", "instance")
    for each in (first, *variables):
        made = made.with_variable(each)
    return made


def laid(made: Board, *panels: stat.Panel | timeseries.Panel | tables.Panel) -> Board:
    """Append panels to a dashboard."""
    for each in panels:
        made = made.with_panel(each)
    return made


def chooser(name: str, label: str, metric: str, values: str) -> dashboard.QueryVariable:
    """Return a variable with the values of a label, initially all."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {values})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_DESC)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all"))
    )


def run_board() -> Board:
    """Return the dashboard of the current run and of the result of the newest one."""
    run = tables.Panel().title("Run").datasource(SOURCE).height(4).span(12)
    run = run.description("The run that the figures are of: the one under way, else the newest.")
    shown = query(of_run("broadside_run_info", "run_id, scenario, state"), instant=True)
    made = laid(
        board(
            "broadside-run",
            "Broadside: run",
            "Throughput, pairs, ledger and verdict of a run.",
            chooser("run", "Run", "broadside_run_info", "run_id"),
        ),
        run.with_target(shown.format("table")),
        verdict(),
        figure(
            "To the next start",
            units.Seconds,
            "Negative: the burst has begun.",
            of_run("broadside_burst_seconds_to_start"),
        ),
        figure(
            "Scale",
            units.Short,
            "Rates on this board are as measured; times this they are what they stand for.",
            of_run("broadside_run_scale"),
        ),
        lines(
            "Throughput",
            units.BitsPerSecondSI,
            "The fleet's senders, the firewall's own figure, the target; each at the layer "
            "that its name says. Layers differ by headers, about 4 %.",
            *(
                query(f"8 * {of_run(f'broadside_{metric}_bytes_per_second', 'layer')}", legend)
                for metric, legend in (
                    ("fleet", "fleet sent, {{layer}}"),
                    ("firewall", "firewall, {{layer}}"),
                    ("run_target", "target, {{layer}}"),
                )
            ),
        )
        .span(24)
        .override_by_regexp("/^fleet/", [colour(FLEET)])
        .override_by_regexp("/^firewall/", [colour(LEDGER)])
        .override_by_regexp("/^target/", [colour(TARGET), dashed()]),
        stacked(
            "Pairs of the burst, by how far they are",
            "Unclaimed, claimed, armed, reported; together all planned pairs.",
            query(of_run("broadside_burst_pairs", "phase"), "{{phase}}"),
        ),
        stacked(
            "Outcomes of the burst",
            "Pairs that have reported, by outcome.",
            query(of_run("broadside_burst_outcomes", "outcome"), "{{outcome}}"),
        ),
        lines(
            "Coverage while it runs",
            units.PercentUnit,
            "Share of the planned pairs that are in the throughput above.",
            query(of_run("broadside_fleet_coverage_ratio"), "coverage"),
        ).max(1),
        stacked(
            "Bursts of the run",
            "By phase.",
            query(of_run("broadside_run_bursts", "phase"), "{{phase}}"),
        ),
        lines(
            "Price",
            units.Dollars,
            "By dated list prices, at real scale: so far, and at the run's end.",
            query(of_run("broadside_run_spent_usd"), "so far"),
            query(of_run("broadside_run_projected_usd"), "at its end"),
        ).span(24),
    )
    return laid(
        made.with_row(dashboard.Row("The newest run, once it is over")),
        figure(
            "Received",
            units.BitsPerSecondSI,
            "The headline: mean over bursts of their windows, at the IP layer.",
            "8 * " + of_run("broadside_run_received_bytes_per_second", matching='layer="ip"'),
        ),
        figure(
            "Of the target",
            units.PercentUnit,
            "At the target's own layer.",
            of_run("broadside_run_received_bytes_per_second", "layer")
            + " / on (layer) "
            + of_run("broadside_run_target_bytes_per_second", "layer"),
            limits((None, RED), (0.95, GREEN)),
        ),
        figure(
            "Completeness",
            units.PercentUnit,
            "Planned pair-seconds on record. Below the floor no verdict is a pass.",
            of_run("broadside_run_completeness_ratio"),
            limits((None, RED), (0.95, GREEN)),
        ),
        figure(
            "Firewall",
            units.BitsPerSecondSI,
            "Its own ledger over the same windows, at the layer it counts.",
            "8 * " + of_run("broadside_run_firewall_bytes_per_second"),
        ),
        figure(
            "Residual",
            units.PercentUnit,
            "Firewall over expected, less one.",
            of_run("broadside_run_residual_ratio"),
        ),
        figure(
            "Start spread",
            units.Seconds,
            "Latest less earliest first data, worst burst.",
            of_run("broadside_run_start_spread_seconds"),
        ),
    )


STALE: Final = 'state="stale"'


def working(role: str) -> str:
    """Return the query of the number of agents of a role with recent heartbeats."""
    lately = f'role="{role}", state!="stale"'
    return f"sum({of_fleet('broadside_agents', 'role, state', lately)})"


def fleet_board() -> Board:
    """Return the dashboard of agents, clocks, queue and coordinator."""
    coordinators = tables.Panel().title("Coordinators").datasource(SOURCE).height(5).span(24)
    return laid(
        board("broadside-fleet", "Broadside: fleet", "Agents, clocks, queue and coordinator."),
        figure("Clients", units.Short, "Heard of within 30 s.", working("client")),
        figure("Servers", units.Short, "Heard of within 30 s.", working("server")),
        figure(
            "Silent agents",
            units.Short,
            "Not heard of for 30 s.",
            f"sum({of_fleet('broadside_agents', 'role', STALE)})",
            limits((None, GREEN), (1, RED)),
        ),
        figure(
            "Largest clock bound",
            units.Seconds,
            "The largest error that a live agent's clock admits; over 50 ms agents stand down.",
            of_fleet("broadside_clock_bound_max_seconds"),
            limits((None, GREEN), (0.05, RED)),
        ),
        figure(
            "Dead letters",
            units.Short,
            "Messages that were set aside; `broadside deadletters explain` says why.",
            of_fleet("broadside_queue_messages", matching='state="dead"'),
            limits((None, GREEN), (1, RED)),
        ),
        figure(
            "Open runs", units.Short, "Runs without a verdict.", of_fleet("broadside_runs_open")
        ),
        stacked(
            "Agents",
            "By role and state.",
            query(f"{of_fleet('broadside_agents', 'role, state')} > 0", "{{role}} {{state}}"),
        ),
        lines(
            "Largest clock bound",
            units.Seconds,
            "The largest error that a live agent's clock admits.",
            query(of_fleet("broadside_clock_bound_max_seconds"), "bound"),
        ),
        lines(
            "Queue",
            units.Short,
            "Jobs that can be received, jobs of later bursts, and dead letters.",
            query(of_fleet("broadside_queue_messages", "state"), "{{state}}"),
        ),
        lines(
            "Since the coordinator looked after runs",
            units.Seconds,
            "Grows when it is stuck or cut off; leases lapse after a minute.",
            query(of_fleet("broadside_tick_age_seconds", "instance"), "{{instance}}"),
        ),
        coordinators.with_target(query("broadside_build_info", instant=True).format("table")),
    )


def colour(value: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": value})


def dashed() -> DynamicConfigValue:
    return DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 8]})


BOARDS: Final = {"run.json": run_board, "fleet.json": fleet_board}


def written() -> dict[str, str]:
    """Return the dashboard files by name."""
    return {
        name: JSONEncoder(sort_keys=True, indent=2).encode(made().build()) + "\n"
        for name, made in BOARDS.items()
    }


if __name__ == "__main__":
    for name, text in written().items():
        (HERE / name).write_text(text, encoding="utf-8")
