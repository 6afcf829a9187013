"""How the states of pairs look: three colours, and a hatch for each state that shares one."""

from collections.abc import Mapping
from typing import Any, Final

from coordinator.core.summary import State
from coordinator.views.charts.theme import Colour

_COLOURS: Final = {State.MEASURED: Colour.FLEET, State.LATE: Colour.WARN}
_HATCHES: Final = {
    State.NULL: "x",
    State.MISSED: "/",
    State.REFUSED: "\\",
    State.ABANDONED: "-",
    State.LOST: "|",
    State.PENDING: ".",
}


def state_marker(state: State, colours: Mapping[Colour, str]) -> dict[str, Any]:
    """Colour and hatch of bars of one state."""
    return {
        "color": colours[_COLOURS.get(state, Colour.MISSING)],
        "pattern": {"shape": _HATCHES.get(state, "")},
    }
