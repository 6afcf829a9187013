"""Tests for the contrast of chart colours, including for colour vision deficiencies."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.views.charts.theme import HEAT, PALETTES, Colour, Theme

# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation
# of Color Vision Deficiency", IEEE TVCG 15(6), 2009: severity 1.0, on linear RGB.
BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
DRAWN = (Colour.FLEET, Colour.COUNTER, Colour.TARGET, Colour.SENT, Colour.MISSING, Colour.WARN)
TOGETHER = (
    (Colour.FLEET, Colour.COUNTER),
    (Colour.FLEET, Colour.OTHER),
    (Colour.FLEET, Colour.WARN),
    (Colour.FLEET, Colour.MISSING),
    (Colour.MISSING, Colour.WARN),
)
Vector = NDArray[np.float64]


def linear(colour: str) -> Vector:
    """Convert sRGB to linear light (IEC 61966-2-1)."""
    text = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.asarray(np.where(text <= 0.04045, text / 12.92, ((text + 0.055) / 1.055) ** 2.4))


def luminance(colour: str) -> float:
    return float(linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio as defined in WCAG 2.2."""
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Vector) -> Vector:
    """Convert linear sRGB to CIE 1976 L*a*b* with white point D65."""
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("colour", DRAWN)
def test_colours_have_contrast_to_the_background(theme: Theme, colour: Colour) -> None:
    palette = PALETTES[theme]
    for ground in (Colour.GROUND, Colour.WINDOW):
        assert contrast(palette[colour], palette[ground]) >= 3
    assert contrast(palette[Colour.INK], palette[Colour.GROUND]) >= 7


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_of_a_chart_are_distinguishable(theme: Theme, kind: str) -> None:
    see = np.array(BLINDNESS[kind])
    for first, second in TOGETHER:
        a, b = (lab(see @ linear(PALETTES[theme][colour])) for colour in (first, second))
        assert np.linalg.norm(a - b) > 20, (first, second)


def test_heat_map_lightness_increases_with_the_value() -> None:
    for kind in BLINDNESS.values():
        lightness = [float(lab(np.array(kind) @ linear(colour))[0]) for _, colour in HEAT]
        assert all(after - before > 10 for before, after in pairwise(lightness))


def test_themes_define_all_colours() -> None:
    for theme in Theme:
        assert set(PALETTES[theme]) == set(Colour)
    shared = [c for c in Colour if PALETTES[Theme.LIGHT][c] == PALETTES[Theme.DARK][c]]
    assert shared == []
