"""Chart colours by role, for the light and the dark theme.

Colours that occur in the same chart can be distinguished with protanopia and deuteranopia. Each has
a contrast of at least 3:1 with its background (WCAG 2.2, 1.4.11). A test computes both. Lines also
differ by dash, and states are also named in text.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from broadside.coordinator.core.summary import SecondState

Hatch = Literal["cross", "up", "down", "flat", "tall", "dots"]


class Theme(StrEnum):
    """Light or dark theme of a chart."""

    LIGHT = "light"
    DARK = "dark"


class Colour(StrEnum):
    """Role of a colour.

    Attributes:
        FAINT: Grid and zero lines.
        UNKNOWN: Background of a heat map, which is visible for unknown seconds.
        WINDOW: Seconds that the headline rate includes.
        COUNTER: Device counter.
        FLEET_BAND: Range from p5 to p95.
        OTHER: Second quantity in a chart, such as the servers' CPU or the other flow.
    """

    GROUND = "ground"
    INK = "ink"
    FAINT = "faint"
    UNKNOWN = "unknown"
    WINDOW = "window"
    FLEET = "fleet"
    FLEET_BAND = "fleet-band"
    SENT = "sent"
    COUNTER = "counter"
    TARGET = "target"
    OTHER = "other"
    MISSING = "missing"
    WARN = "warn"


_LIGHT: Final[Mapping[Colour, str]] = {
    Colour.GROUND: "#ffffff",
    Colour.INK: "#1c2733",
    Colour.FAINT: "#dde3e9",
    Colour.UNKNOWN: "#e2e2e2",
    Colour.WINDOW: "#eef4fa",
    Colour.FLEET: "#0b62a4",
    Colour.FLEET_BAND: "#b9d6ee",
    Colour.SENT: "#6d7f92",
    Colour.COUNTER: "#c25e00",
    Colour.TARGET: "#1c2733",
    Colour.OTHER: "#c25e00",
    Colour.MISSING: "#5c0f3a",
    Colour.WARN: "#a87400",
}
_DARK: Final[Mapping[Colour, str]] = {
    Colour.GROUND: "#12181f",
    Colour.INK: "#e6ebf0",
    Colour.FAINT: "#2d3843",
    Colour.UNKNOWN: "#4a4a4a",
    Colour.WINDOW: "#1a2531",
    Colour.FLEET: "#5fb0ee",
    Colour.FLEET_BAND: "#27475f",
    Colour.SENT: "#8d9dad",
    Colour.COUNTER: "#f59a3c",
    Colour.TARGET: "#e6ebf0",
    Colour.OTHER: "#f59a3c",
    Colour.MISSING: "#f7bfdc",
    Colour.WARN: "#ffd95e",
}
PALETTES: Final[Mapping[Theme, Mapping[Colour, str]]] = {Theme.LIGHT: _LIGHT, Theme.DARK: _DARK}

# Viridis. Lightness increases with the value, also for colour-blind readers. No colour is grey,
# because grey means unknown.
HEAT: Final[tuple[tuple[float, str], ...]] = (
    (0.0, "#440154"),
    (0.25, "#3b528b"),
    (0.5, "#21918c"),
    (0.75, "#5ec962"),
    (1.0, "#fde725"),
)

_STATE_COLOURS: Final = {SecondState.MEASURED: Colour.FLEET, SecondState.LATE: Colour.WARN}
_STATE_HATCHES: Final[Mapping[SecondState, Hatch]] = {
    SecondState.NULL: "cross",
    SecondState.MISSED: "up",
    SecondState.REFUSED: "down",
    SecondState.ABANDONED: "flat",
    SecondState.LOST: "tall",
    SecondState.PENDING: "dots",
}


def state_style(state: SecondState) -> tuple[Colour, Hatch | None]:
    """Return the colour and the hatch of the bars for one state.

    Returns:
        Colour, and hatch or None for plain bars.
    """
    return _STATE_COLOURS.get(state, Colour.MISSING), _STATE_HATCHES.get(state)
