"""Report of a search for wrong verdicts, by kind of world."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tests.hunt.world_cases import ERROR, FAIL, INCONCLUSIVE, PASS, Case
from tests.worlds import KINDS

# A wrong fail does not always have an avoidable cause. Issue 31 permits fewer than this.
WRONG_FAILS_MAX_RATIO: Final = 0.005
HEAD: Final = (
    f"{'kind':24} cases  pass  fail incon error !pass !fail  needless  cover   r/unknown/w flips"
)
# Number of seeds for a kind of fault.
EXAMPLES: Final = 3


def is_failed(cases: Sequence[Case]) -> bool:
    """Return whether there is a wrong pass, an exception or too many wrong fails."""
    wrong_fails = sum(case.wrong_fail for case in cases)
    return any(
        case.wrong_pass or case.verdict == ERROR or case.flip or case.contradictions
        for case in cases
    ) or wrong_fails > WRONG_FAILS_MAX_RATIO * len(cases)


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:5.1f}" if total else "    -"


def _row(name: str, cases: Sequence[Case]) -> str:
    verdicts = Counter(case.verdict for case in cases)
    due = [case for case in cases if case.should_pass]
    stored = [stored for case in cases for stored in case.covered]
    result = Counter(case.bottleneck for case in cases)
    numbers = (
        len(cases),
        verdicts[PASS],
        verdicts[FAIL],
        verdicts[INCONCLUSIVE],
        verdicts[ERROR],
        sum(case.wrong_pass for case in cases),
        sum(case.wrong_fail for case in cases),
    )
    cells = "".join(f"{number:6d}" for number in numbers)
    needless = f"{sum(case.needless for case in due)}/{len(due)}"
    names = f"{result['right']}/{result['unknown']}/{result['wrong']}"
    flips = sum(case.flip is not None for case in cases)
    return (
        f"{name:24}{cells}{needless:>10}  {_share(sum(stored), len(stored))}{names:>14}{flips:6d}"
    )


def _examples(cases: Iterable[Case]) -> Iterator[str]:
    """Yield the first seeds for the faults of a kind."""
    seen: Counter[tuple[str, str]] = Counter()
    for case in cases:
        faults = []
        if case.wrong_pass or case.wrong_fail:
            faults.append((f"wrong {case.verdict}", f"{case.wrong[0]}; findings {case.why[:3]}"))
        if case.verdict == ERROR:
            faults.append((ERROR, case.why[0]))
        if case.needless:
            faults.append((f"needless {case.verdict}", ", ".join(case.why[:4])))
        if case.bottleneck == "wrong":
            named, true = case.named
            faults.append((f"bottleneck {named}", f"truth {true}"))
        if case.flip:
            faults.append(("flip", case.flip))
        if case.contradictions:
            faults.append(("early stop", case.contradictions[0]))
        for fault, text in faults:
            seen[case.kind, fault] += 1
            if seen[case.kind, fault] <= EXAMPLES:
                yield f"{case.kind} {case.seed}: {fault}: {text}"


def _early_stops(by_kind: Mapping[str, Sequence[Case]]) -> Iterator[str]:
    """Yield the heading and a line for each kind with bursts that were stopped."""
    heading = ["", "bursts that ended when certain:"]
    for kind, cases in by_kind.items():
        stops = sorted(case.stopped_s for case in cases if case.stopped_s is not None)
        if stops:
            yield from heading
            heading = []
            changed = sum(case.changed for case in cases)
            yield (
                f"  {kind}: {len(stops)} of {len(cases)}, median second {stops[len(stops) // 2]}; "
                f"{changed} on the other side of the limit at the planned end"
            )


def report(cases: Sequence[Case]) -> list[str]:
    """Return the lines of a report.

    Args:
        cases: All cases of a search.
    """
    by_kind: dict[str, list[Case]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, []).append(case)
    lines = [
        HEAD,
        *(_row(kind, by_kind[kind]) for kind in KINDS if kind in by_kind),
        _row("all", cases),
        "",
        *_examples(cases),
    ]
    lines += _early_stops(by_kind)
    unseen = Counter(case.kind for case in cases if case.verdict == PASS and case.unseen)
    if unseen:
        lines.append("")
        lines.append("passes of what no recorded source contradicts:")
        lines += [f"  {kind}: {count}" for kind, count in unseen.most_common()]
    return lines
