"""Tests for dashboards and alerts, which must only use existing metrics and labels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from broadside.coordinator.views.prometheus_metrics import METRICS

ROOT = Path(__file__).parents[3]
GRAFANA, PROMETHEUS = (ROOT / "dashboards" / name for name in ("grafana", "prometheus"))
BOARDS = sorted(GRAFANA.glob("*.json"))
# These labels are added by Prometheus.
PROMETHEUS_LABELS = {"job", "instance"}


def panels(board: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(board.read_text("utf-8"))["panels"]:
        yield panel
        yield from panel.get("panels", [])


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for board in BOARDS:
        for panel in panels(board):
            for target in panel.get("targets", []):
                yield f"{board.name}: {panel['title']}", target["expr"]


def alerts() -> Iterator[dict[str, Any]]:
    rules = yaml.safe_load((PROMETHEUS / "broadside.rules.yml").read_text("utf-8"))
    for group in rules["groups"]:
        yield from group["rules"]


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics in a query, with the labels used to match them."""
    tree = promql_parser.parse(expression)
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, promql_parser.VectorSelector):
            yield str(node.name), {matcher.name for matcher in node.matchers.matchers}
        for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
            child = getattr(node, part, None)
            if child is not None:
                pending.append(child)
        pending += getattr(node, "args", None) or []


def test_queries_use_existing_metrics_and_labels() -> None:
    queries = [*dashboard_queries(), *((rule["alert"], rule["expr"]) for rule in alerts())]
    assert len(queries) > 25
    for panel, expression in queries:
        result = list(selectors(expression))
        assert result, panel
        for name, labels in result:
            if name == "up":
                assert labels <= PROMETHEUS_LABELS
                continue
            assert name in METRICS, panel
            assert labels <= {*METRICS[name][1], *PROMETHEUS_LABELS}, panel


def test_detects_query_of_unknown_metric() -> None:
    wrong = "max by (layer) (unknown_metric / on (layer) broadside_fleet_bytes_per_second{a='b'})"
    result = dict(selectors(wrong))
    assert "unknown_metric" in result
    assert not result["broadside_fleet_bytes_per_second"] <= {
        *METRICS["broadside_fleet_bytes_per_second"][1]
    }


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_panels_have_descriptions_and_do_not_overlap(board: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(board):
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel.get("description") or panel["type"] == "table", panel["title"]
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert position["x"] + position["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["custom"].get("spanNulls") is False


def test_alerts_have_summary_and_action() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
