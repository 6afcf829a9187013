"""Colours of charts by what they stand for, light and dark.

Chosen so that any two that meet in one chart stay apart under protanopia and deuteranopia, and each
keeps at least 3:1 contrast to its ground (WCAG 2.2, 1.4.11); a test computes both. Where hue is not
enough, lines differ in dash and states are named in text.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from broadside.coordinator.core.summary import State


class Theme(StrEnum):
    LIGHT = "light"
    DARK = "dark"


class Colour(StrEnum):
    """What a colour stands for."""

    GROUND = "ground"
    INK = "ink"
    FAINT = "faint"  # grid, zero lines
    UNKNOWN = "unknown"  # ground of a heat map: nobody saw this second
    WINDOW = "window"  # the seconds that the headline is over
    FLEET = "fleet"
    FLEET_BAND = "fleet-band"  # p5 to p95
    SENT = "sent"
    LEDGER = "ledger"
    TARGET = "target"
    OTHER = "other"  # a second quantity beside the fleet's: servers' CPU, the other flow
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
    Colour.LEDGER: "#c25e00",
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
    Colour.LEDGER: "#f59a3c",
    Colour.TARGET: "#e6ebf0",
    Colour.OTHER: "#f59a3c",
    Colour.MISSING: "#f7bfdc",
    Colour.WARN: "#ffd95e",
}
PALETTES: Final[Mapping[Theme, Mapping[Colour, str]]] = {Theme.LIGHT: _LIGHT, Theme.DARK: _DARK}

# Viridis: the order of lightness is the order of values, for everybody; none of it is grey, as
# what nobody saw is.
HEAT: Final[tuple[tuple[float, str], ...]] = (
    (0.0, "#440154"),
    (0.25, "#3b528b"),
    (0.5, "#21918c"),
    (0.75, "#5ec962"),
    (1.0, "#fde725"),
)


_COLOURS: Final = {State.MEASURED: Colour.FLEET, State.LATE: Colour.WARN}
_HATCHES: Final = {
    State.NULL: "x",
    State.MISSED: "/",
    State.REFUSED: "\\",
    State.ABANDONED: "-",
    State.LOST: "|",
    State.PENDING: ".",
}


def state_look(state: State) -> tuple[Colour, str]:
    """Colour and hatch of bars of one state."""
    return _COLOURS.get(state, Colour.MISSING), _HATCHES.get(state, "")
