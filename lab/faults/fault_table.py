"""Results as a table: a line a cell, for a terminal or for the docs. Pure."""

from collections.abc import Sequence
from typing import Final

from lab.faults.cell import Result
from lab.faults.matrix import FAULTS

CHAPTER: Final = "## The table\n"


def text(results: Sequence[Result]) -> str:
    """A line a cell, and below it every rule that does not hold."""
    lines = []
    for result in results:
        cell = f"{result.fault}/{result.phase}"
        lines.append(f"{cell:34}{outcome(result):58}{result.verdict:13}{_rules(result)}")
        lines += [f"    BROKEN {said}" for said in result.broken]
    return "\n".join(lines)


def markdown(results: Sequence[Result]) -> str:
    """Rows by fault, columns by phase; below it every rule that does not hold."""
    phases = list(dict.fromkeys(result.phase for result in results))
    lines = [f"| fault | {' | '.join(phases)} |", "| --- |" + " --- |" * len(phases)]
    for fault in dict.fromkeys(result.fault for result in results):
        row = {result.phase: result for result in results if result.fault == fault}
        cells = (_cell(row[phase]) if phase in row else "" for phase in phases)
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    lines += [f"\n{r.fault}/{r.phase}: {said}" for r in results for said in r.broken]
    return "\n".join(lines)


def chapter(document: str, results: Sequence[Result], when: str) -> str:
    """The document with its last chapter, ``## The table``, written anew. Raises ``ValueError``."""
    before, mark, _ = document.partition(CHAPTER)
    if not mark:
        raise ValueError(f"the document has no chapter {CHAPTER.strip()!r}")
    legend = [f"| {fault.name} | {fault.says} |" for fault in FAULTS.values()]
    told = "\n".join(["| fault | what is done |", "| --- | --- |", *legend])
    return f"{before}{CHAPTER}\n{when}\n\n{markdown(results)}\n\n{told}\n"


def outcome(result: Result) -> str:
    """What became of the pairs, burst after burst."""
    return " / ".join(result.bursts) + (f" [{result.note}]" if result.note else "")


def _cell(result: Result) -> str:
    return f"{outcome(result)}; {result.verdict}; {_rules(result)}"


def _rules(result: Result) -> str:
    return "BROKEN" if result.broken else "ok"
