"""Which cases are carried out. Pure."""

from collections.abc import Sequence

from lab.scenarios.cases import CASES, Case


def chosen(parts: Sequence[str] | None) -> list[Case]:
    """Every case whose name holds one of ``parts``, and what it is held against; None: all."""
    wanted = {case.name for case in CASES if not parts or any(part in case.name for part in parts)}
    wanted |= {
        case.expected.rate_ratio_of[0]
        for case in CASES
        if case.name in wanted and case.expected.rate_ratio_of is not None
    }
    return [case for case in CASES if case.name in wanted]
