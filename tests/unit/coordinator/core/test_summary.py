"""Tests for verdicts and findings."""

import ast
from pathlib import Path
from typing import Final

import pytest

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.core.summary import (
    BurstSummary,
    DeviceSummary,
    FlowSummary,
    Verdict,
    caution,
    note,
    order,
    problem,
    warning,
    worse,
)
from broadside.exchange.messages import Message

CORE: Final = Path(__file__).parents[4] / "coordinator" / "core"
PASS, FAIL, OPEN, MEASURED = (
    *(Verdict.PASS, Verdict.FAIL),
    *(Verdict.INCONCLUSIVE, Verdict.MEASURED),
)


@pytest.mark.parametrize(
    ("verdicts", "combined"),
    [
        ((), OPEN),
        ((PASS, PASS), PASS),
        ((PASS, MEASURED), MEASURED),
        ((PASS, OPEN, MEASURED), OPEN),
        ((PASS, OPEN, FAIL), FAIL),
    ],
)
def test_combined_verdict_is_the_worst(verdicts: tuple[Verdict, ...], combined: Verdict) -> None:
    assert worse(verdicts) is combined
    assert worse(reversed(verdicts)) is combined


def test_findings_are_sorted_by_weight_and_then_by_id() -> None:
    findings = [note("c", 1, "C."), note("b", 5, "B."), note("a", 1, "A.")]
    assert [finding.id for finding in order(findings)] == ["b", "a", "c"]


def test_only_a_problem_belongs_to_the_verdict() -> None:
    made = (problem("a", 1, "A.", "Do."), warning("b", 1, "B."), caution("c", 1, "C."))
    kinds = [(finding.kind, finding.severity) for finding in (*made, note("d", 1, "D."))]
    assert kinds == [
        *(("verdict", "problem"), ("cause", "warning")),
        *(("context", "warning"), ("context", "note")),
    ]


def uncomputed(model: type[Message], name: str) -> set[str]:
    """Return the fields of a class that no module of the core sets.

    A module sets a field with a keyword argument of the class, or with a key of a dictionary. The
    figures of a device are keys of the type ``Quantity``.

    Args:
        model: Class to check.
        name: Name with which modules call it.
    """
    fields = {str(quantity) for quantity in Quantity}
    for path in CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                fields |= {keyword.arg for keyword in node.keywords if keyword.arg}
            elif isinstance(node, ast.Dict):
                fields |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    return model.model_fields.keys() - fields


@pytest.mark.parametrize("model", [BurstSummary, DeviceSummary, FlowSummary])
def test_core_computes_every_field_of_a_summary(model: type[Message]) -> None:
    assert uncomputed(model, model.__name__) == set()


def test_field_without_a_computation_is_detected() -> None:
    class Longer(BurstSummary):
        temperature_max_celsius: float | None = None

    assert uncomputed(Longer, "BurstSummary") == {"temperature_max_celsius"}
