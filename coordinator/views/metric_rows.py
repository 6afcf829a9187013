"""Headline metrics of a run as table rows. Pure."""

from dataclasses import dataclass, replace

from broadside.coordinator.core.formatting import MetricUnit, rate
from broadside.coordinator.core.metrics import ALL_METRICS, COUNTER_LAYER, layer_label, received_at
from broadside.coordinator.core.summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric as text and as a number.

    Attributes:
        label: Label of the metric.
        layer: Layer at which it was measured.
        measured: Measured value as text.
        scaled_metric: Rate at real scale as text. Only used in a scaled lab.
        value: Measured value, in ``unit``.
        unit: Unit for ``value``.
        decimals: Decimals of a percentage.
    """

    label: str
    layer: str
    measured: str
    scaled_metric: str | None = None
    value: float | None = None
    unit: MetricUnit
    decimals: int = 2

    def cells(self, *, lab: bool) -> tuple[str, ...]:
        """Return the cells of a table row.

        Args:
            lab: True to add a column with the rate at real scale.
        """
        return (
            self.label,
            self.layer,
            self.measured,
            *((self.scaled_metric or "",) if lab else ()),
        )


def metric_rows(summary: RunSummary) -> list[MetricRow]:
    """Return the target and the headline metrics. Optional metrics are omitted if unknown.

    The received rate at the layer of the objective comes first, beside the target.
    """
    target = summary.target_bits_per_second
    layer = summary.target_layer.value
    text = "none set" if target is None else rate(target)
    rows = [_row("target", layer_label(layer), MetricUnit.RATE, target, text)]
    main = received_at(summary.target_layer)
    for metric in (main, *(metric for metric in ALL_METRICS if metric is not main)):
        value = metric.of_run(summary)
        if metric.headline and not (metric.optional and value is None):
            layer = layer_label(layer_of(metric.layer, summary))
            row = _row(metric.label, layer, metric.unit, value, metric.format(value))
            rows.append(replace(row, decimals=metric.decimals))
    return [_at_real_scale(row, summary.scale) for row in rows]


def layer_of(layer: str, summary: RunSummary) -> str:
    """Return a metric's layer as text.

    Args:
        layer: Layer of the metric. ``COUNTER_LAYER`` means the layer of the device counter.
        summary: The run's summary.
    """
    if layer != COUNTER_LAYER:
        return layer
    return "none read" if summary.reconciliation is None else summary.reconciliation.layer


def _row(label: str, layer: str, unit: MetricUnit, value: float | None, text: str) -> MetricRow:
    return MetricRow(label=label, layer=layer, measured=text, value=value, unit=unit)


def _at_real_scale(row: MetricRow, scale: float) -> MetricRow:
    """Return a row with its rate at real scale, if the run has a scale."""
    if row.unit is not MetricUnit.RATE or row.value is None or scale == 1:
        return row
    return replace(row, scaled_metric=rate(row.value * scale))
