"""Drawings of the documentation: folders with their imports, and the timeline of a burst."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final

from tests.docs_build.checks_page import precedence_rows
from tests.docs_build.import_table import read_import_table

WIDTH: Final = 860
BOX_WIDTH, BOX_HEIGHT, GAP = 150, 34, 18
LAYER_HEIGHT: Final = 84
STYLE: Final = """\
<style>
  text { font: 13px sans-serif; fill: #1b2733; }
  .small { font-size: 11px; fill: #44566c; }
  .box { fill: #eef4fb; stroke: #3b6ea5; }
  .line { stroke: #3b6ea5; fill: none; }
  .load { fill: #9cc3ec; stroke: none; }
  .late { fill: #f2c894; stroke: none; }
  .mark { stroke: #b3361b; stroke-dasharray: 4 3; }
</style>
<rect width="100%" height="100%" fill="white"/>"""

ARROW: Final = (
    '<defs><marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#3b6ea5"/></marker></defs>'
)


def _head(height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{title}</title>{STYLE}"
    )


def _layers(table: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the layer of each folder, which is one above the highest imported folder."""
    layers: dict[str, int] = {}
    for folder in TopologicalSorter(table).static_order():
        layers[folder] = max((layers[other] + 1 for other in table[folder]), default=0)
    return layers


def _direct(table: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return the imports of each folder without those that follow from another import."""
    below: dict[str, set[str]] = {}
    direct: dict[str, set[str]] = {}
    for folder in TopologicalSorter(table).static_order():
        allowed = set(table[folder])
        below[folder] = allowed.union(*(below[other] for other in allowed))
        direct[folder] = allowed.difference(*(below[other] for other in allowed))
    return direct


def architecture_svg() -> str:
    """Return the drawing of the folders. An arrow points to an imported folder."""
    table = read_import_table()
    layers = _layers(table)
    top = max(layers.values())
    places: dict[str, tuple[float, float]] = {}
    for layer in range(top + 1):
        folders = [folder for folder in table if layers[folder] == layer]
        width = len(folders) * (BOX_WIDTH + GAP) - GAP
        for index, folder in enumerate(folders):
            x = (WIDTH - width) / 2 + index * (BOX_WIDTH + GAP)
            places[folder] = (x, 12 + (top - layer) * LAYER_HEIGHT)
    parts = [
        _head((top + 1) * LAYER_HEIGHT, "Folders and their imports"),
        ARROW,
    ]
    for folder, others in _direct(table).items():
        x, y = places[folder]
        for other in sorted(others):
            to_x, to_y = places[other]
            parts.append(
                f'<path class="line" marker-end="url(#end)" d="M{x + BOX_WIDTH / 2:.0f},'
                f"{y + BOX_HEIGHT:.0f} C{x + BOX_WIDTH / 2:.0f},{y + BOX_HEIGHT + 30:.0f} "
                f"{to_x + BOX_WIDTH / 2:.0f},{to_y - 30:.0f} {to_x + BOX_WIDTH / 2:.0f},"
                f'{to_y - 2:.0f}"/>'
            )
    for folder, (x, y) in places.items():
        parts.append(
            f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            f'rx="5"/><text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 21:.0f}" text-anchor="middle">'
            f"{folder.removeprefix('coordinator/') if '/' in folder else folder}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One bar of the timeline.

    Attributes:
        row: Row of the bar.
        from_s: Start in seconds after the planned start.
        to_s: End in seconds after the planned start.
        label: Text beside the bar.
        kind: Style class.
    """

    row: int
    from_s: float
    to_s: float
    label: str
    kind: str = "box"


PRECEDENCE_ROW: Final = 52
ROWS: Final = ("coordinator", "client agent", "server agent", "traffic", "device counter")
STEPS: Final = (
    Step(row=0, from_s=-20, to_s=-18, label="jobs visible in the queue"),
    Step(row=0, from_s=40, to_s=46, label="measure, judge"),
    Step(row=1, from_s=-17, to_s=-14, label="receive, claim"),
    Step(row=1, from_s=-8, to_s=-3, label="connect, idle RTT, armed"),
    Step(row=1, from_s=-2, to_s=0, label=""),
    Step(row=1, from_s=30, to_s=33, label="report"),
    Step(row=2, from_s=-20, to_s=33, label="engine listens"),
    Step(row=3, from_s=0, to_s=30, label="all pairs send", kind="load"),
    Step(row=4, from_s=12, to_s=42, label="the same bytes, after the lag", kind="late"),
)
BURST_FROM_S, BURST_TO_S, BURST_LEFT, BURST_ROW = -22.0, 50.0, 120, 52


def burst_svg() -> str:
    """Return the timeline of a burst of 30 s."""

    def x_of(second: float) -> float:
        span = BURST_TO_S - BURST_FROM_S
        return BURST_LEFT + (second - BURST_FROM_S) / span * (WIDTH - BURST_LEFT - 10)

    height = len(ROWS) * BURST_ROW + 60
    parts = [_head(height, "Time line of a burst")]
    for index, name in enumerate(ROWS):
        y = 30 + index * BURST_ROW
        parts.append(f'<text x="6" y="{y + 24}">{name}</text>')
        parts.append(
            f'<path class="line" stroke-opacity="0.2" d="M{BURST_LEFT},{y + 36} H{WIDTH - 10}"/>'
        )
    for step in STEPS:
        y, x = 30 + step.row * BURST_ROW, x_of(step.from_s)
        parts.append(
            f'<rect class="{step.kind}" x="{x:.0f}" y="{y + 18}" '
            f'width="{x_of(step.to_s) - x:.0f}" height="18"/>'
            f'<text class="small" x="{x:.0f}" y="{y + 13}">{step.label}</text>'
        )
    bottom = 30 + len(ROWS) * BURST_ROW
    for second, label in ((0, "planned start"), (30, "planned end")):
        x = x_of(second)
        parts.append(
            f'<path class="mark" d="M{x:.0f},8 V{bottom}"/>'
            f'<text class="small" x="{x + 4:.0f}" y="14">{label}</text>'
        )
    parts += [
        f'<text class="small" x="{x_of(second):.0f}" y="{bottom + 18}" text-anchor="middle">'
        f"{second} s</text>"
        for second in range(-20, 50, 10)
    ]
    return "\n".join([*parts, "</svg>", ""])


def precedence_svg() -> str:
    """Return the order of precedence as a chain of questions with their verdicts."""
    rows = precedence_rows()
    height = len(rows) * PRECEDENCE_ROW + 10
    parts = [_head(height, "Order of precedence")]
    for index, (situation, verdict, _) in enumerate(rows):
        y, is_last = 10 + index * PRECEDENCE_ROW, index == len(rows) - 1
        parts.append(
            f'<rect class="box" x="10" y="{y}" width="600" height="34" rx="5"/>'
            f'<text x="20" y="{y + 21}">{index + 1}. {situation}</text>'
            f'<path class="line" d="M610,{y + 17} H690"/>'
            f'<text class="small" x="640" y="{y + 13}">yes</text>'
            f'<rect class="box" x="690" y="{y}" width="150" height="34" rx="17"/>'
            f'<text x="765" y="{y + 21}" text-anchor="middle">{verdict}</text>'
        )
        if not is_last:
            parts.append(
                f'<path class="line" d="M60,{y + 34} V{y + PRECEDENCE_ROW}"/>'
                f'<text class="small" x="66" y="{y + 48}">no</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


DRAWINGS: Final = {
    "architecture.svg": architecture_svg,
    "burst.svg": burst_svg,
    "precedence.svg": precedence_svg,
}
