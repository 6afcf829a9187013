"""Verdicts and comparisons as Markdown, for the summary page of a CI pipeline. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.group_comparison import Comparison, Metric
from broadside.coordinator.core.comparison.regression_gate import GateResult
from broadside.coordinator.core.metrics import layer_label, metric_by_short_name, received_at
from broadside.coordinator.core.summary import Finding, RunSummary, Verdict
from broadside.coordinator.core.verdict_reason import VerdictReason, explain_verdict
from broadside.coordinator.views.metric_rows import metric_rows

_BARS: Final = "▁▂▃▄▅▆▇█"
_UNKNOWN_BAR: Final = "·"
# Number of the newest bursts in the sparkline.
_BURSTS_MAX_COUNT: Final = 60
_SIGNS: Final = {
    Verdict.PASS: "✅",
    Verdict.FAIL: "❌",
    Verdict.INCONCLUSIVE: "⚠️",
    Verdict.MEASURED: "📏",
}
_CODE: Final = re.compile(r"(`[^`]+`)")
# An underscore inside a word is no Markdown, for example in the name of a setting.
_SPECIAL: Final = re.compile(r"[\\`*\[\]<>|#]|(?<!\w)_++|_++(?!\w)")


def verdict_markdown(summary: RunSummary) -> str:
    """Return headline, reason, next step, sparkline of the bursts, metrics and other findings."""
    explained = explain_verdict(summary)
    main = received_at(summary.target_layer)
    rates = [main.of_burst(burst) for burst in summary.bursts][-_BURSTS_MAX_COUNT:]
    lab = summary.scale != 1
    titles = ("metric", "layer", "measured", *(("at real scale",) if lab else ()))
    rows = [row.cells(lab=lab) for row in metric_rows(summary)]
    return _text(
        f"## {_SIGNS[summary.verdict]} {summary.verdict.value}: {plain(summary.scenario)}",
        f"**Reason:** {with_code(explained.reason)}",
        f"**Next step:** {with_code(explained.next_step)}.",
        f"{plain(summary.run_id)}, {summary.pairs_measured} of {summary.pairs_planned} pairs, "
        f"fleet received {formatting.rate(main.of_run(summary))} "
        f"({layer_label(summary.target_layer)})"
        + (f", in a {formatting.lab(summary.scale)}" if lab else ""),
        f"`{sparkline(rates)}` received rate by burst, from 0 to "
        f"{formatting.rate(max((rate for rate in rates if rate is not None), default=None))}",
        _table(titles, rows),
        *_findings(explained),
    )


def comparison_markdown(comparison: Comparison, gates: Sequence[GateResult]) -> str:
    """Return the results of a comparison and of its gates.

    Args:
        comparison: Comparison to show.
        gates: Results of the gates.
    """
    return _text(
        f"## {plain(comparison.b)} compared with {plain(comparison.a)}",
        *(
            f"{_SIGNS[gate.verdict]} **{gate.verdict.value}** {plain(gate.sentence)}"
            for gate in gates
        ),
        plain(comparison.sentence),
        _table(
            ("mean over bursts", "a", "b", "b - a at 95 %", ""),
            [_row(metric) for metric in comparison.metrics],
        ),
    )


def sparkline(values: Sequence[float | None]) -> str:
    """Return one bar for each value, from zero to the maximum. An unknown value is a dot."""
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(
        _UNKNOWN_BAR
        if value is None
        else _BARS[round((len(_BARS) - 1) * max(0.0, value) / most) if most > 0 else 0]
        for value in values
    )


def plain(text: str) -> str:
    """Escape Markdown characters, because labels, names and findings can contain any text."""
    return _escaped(" ".join(text.split()))


def with_code(text: str) -> str:
    """Escape Markdown characters, but keep commands and settings in backticks as code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    """Escape Markdown characters, and keep spaces at both ends."""
    return _SPECIAL.sub(lambda match: "".join(f"\\{character}" for character in match[0]), text)


def _findings(explained: VerdictReason) -> Iterator[str]:
    """Yield other findings, and the notes in a block that is closed at first."""
    if explained.others:
        yield "### Other findings"
        yield _list(explained.others)
    if explained.notes:
        yield f"<details><summary>Notes ({len(explained.notes)})</summary>"
        yield _list(explained.notes)
        yield "</details>"


def _list(findings: Iterable[Finding]) -> str:
    return "\n".join(
        f"- **{finding.severity}** `{finding.id}` {with_code(finding.sentence)}"
        + (f" *Next: {with_code(finding.next_step)}*" if finding.next_step else "")
        for finding in findings
    )


def _row(metric: Metric) -> tuple[str, ...]:
    item = metric_by_short_name(metric.name)
    half = metric.difference_half_width
    return (
        f"{metric.name} ({layer_label(item.layer)})" if item.layer else metric.name,
        item.format(metric.a_mean),
        item.format(metric.b_mean),
        item.format(metric.difference) + ("" if half is None else f" ± {item.format(half)}"),
        "significant" if metric.significant else "",
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(*blocks: str) -> str:
    return "\n\n".join(blocks) + "\n"
