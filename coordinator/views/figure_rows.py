"""A run's headline figures as rows for a reader, from the one registry. Pure."""

from dataclasses import dataclass, replace

from broadside.coordinator.core.figures import FIGURES, LEDGER
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.core.words import UNKNOWN, Unit, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure in words, and as the number that they say."""

    words: str
    layer: str
    measured: str
    stands_for: str | None = None  # of a rate in a scaled lab
    value: float | None = None  # as measured, in ``unit``
    unit: Unit
    decimals: int = 2  # of a percentage

    def cells(self, *, lab: bool) -> tuple[str, ...]:
        """As a table's row; ``lab``: with a column of what it stands for."""
        return (
            self.words,
            self.layer,
            self.measured,
            *((self.stands_for or "",) if lab else ()),
        )


def figure_rows(summary: RunSummary) -> list[FigureRow]:
    """The target and every headline figure; those that few runs have where they are known."""
    target = summary.target_bits_per_second
    layer = summary.target_layer.value
    rows = [_row("target", layer, Unit.RATE, target, summary, rate(target), "none set")]
    for each in FIGURES:
        value = each.of_run(summary)
        if each.headline and not (each.optional and value is None):
            layer = layer_of(each.layer, summary)
            row = _row(each.words, layer, each.unit, value, summary, each.say(value))
            rows.append(replace(row, decimals=each.decimals))
    return rows


def layer_of(layer: str, summary: RunSummary) -> str:
    """A figure's layer in words; the ledger's own where one was read."""
    if layer != LEDGER:
        return layer
    return "none read" if summary.reconciliation is None else summary.reconciliation.layer


def _row(
    words: str,
    layer: str,
    unit: Unit,
    value: float | None,
    summary: RunSummary,
    said: str,
    unknown: str = UNKNOWN,
) -> FigureRow:
    scaled = unit is Unit.RATE and value is not None and summary.scale != 1
    return FigureRow(
        words=words,
        layer=layer,
        measured=said if said != UNKNOWN else unknown,
        stands_for=rate(value * summary.scale) if scaled and value is not None else None,
        value=value,
        unit=unit,
    )
