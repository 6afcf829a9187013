"""Causes that a support bundle shows, in the order in which they explain each other."""

from typing import Any, Final

import pytest

from broadside.coordinator.cli.support_causes import find_causes

NOW: Final = "2026-11-27T18:00:00+00:00"
MANIFEST: Final[dict[str, Any]] = {
    "format": 1, "created_at": NOW, "version": "1.0.0", "live": True, "missing": {}
}  # fmt: skip
BASE: Final[dict[str, Any]] = {"manifest.json": MANIFEST}


def agent(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "agent_id": name, "beat_at": NOW, "broadside_version": "1.0.0", "problem": None,
        "clock": {"synchronised": True},
    } | changes  # fmt: skip


def run(*, pairs: list[Any] | None = None, findings: list[Any] | None = None) -> dict[str, Any]:
    return {
        "status": {"cancel_reason": None}, "pairs": pairs or [],
        "summary": {"findings": findings or []},
    }  # fmt: skip


def check(name: str, *, ok: bool, required: bool = True) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": "d", "fix": None, "required": required}


CASES: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "nothing": ({}, []),
    "terraform": (
        {"range/terraform-errors.txt": "╷\n│ Error: creating Budget: 400\n│ no offer\n╵\n"},
        ["terraform: creating Budget: 400 no offer"],
    ),
    "broken need": (
        {"range/explain.txt": "VM need result\nclient  queue  BROKEN   role: none\nclient x  ok"},
        ["client queue BROKEN role: none"],
    ),
    "VM": (
        {"range/boot.json": [{"name": "c1", "ready": False, "reason": "install failed"},
                             {"name": "c2", "ready": True, "reason": ""}]},
        ["VM c1: install failed"],
    ),
    "checks": (
        {"checks.json": [check("disk", ok=False), check("gate", ok=False, required=False),
                         check("table", ok=True)]},
        ["disk: d"],
    ),
    "problem of agents": (
        {"agents.json": [agent("s1", problem="no iperf3"), agent("s2", problem="no iperf3"),
                         agent("c1")]},
        ["s1, s2: no iperf3"],
    ),
    "clock": (
        {"agents.json": [agent("c1", clock={"synchronised": False}), agent("c2", clock=None)]},
        ["c1: the clock is not synchronised"],
    ),
    "versions": (
        {"agents.json": [agent("c1"), agent("c2"), agent("s1", broadside_version="0.9.0")]},
        ["agents have different versions: 2 x 1.0.0, 1 x 0.9.0"],
    ),
    "silent": (
        {"agents.json": [agent("c1", beat_at="2026-11-27T17:58:00+00:00"), agent("c2")]},
        ["c1: no heartbeat for a minute"],
    ),
    "pairs": (
        {"runs/a.json": run(pairs=[{"pair": f"pair-{n}", "reason": "refused"} for n in range(5)])},
        ["pair-0, pair-1, pair-2 and 2 more: refused"],
    ),
    "findings": (
        {"runs/a.json": run(findings=[
            {"severity": "problem", "sentence": "low rate", "next_step": "look"},
            {"severity": "note", "sentence": "fine", "next_step": None}])},
        ["low rate"],
    ),
    "dead letters": (
        {"deadletters.json": [{"reason": "expired", "sequence_number": 7}]},
        ["dead letters 7: expired"],
    ),
    "part": (
        {"manifest.json": MANIFEST | {"missing": {"runs": "table away", "journal": "none: x"}}},
        ["runs could not be read: table away"],
    ),
    "logs": (
        {"logs/a.log": "INFO fine\n1 ERROR disk full\n1 ERROR disk full\nbroadside: no range"},
        ["1 ERROR disk full", "broadside: no range"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_evidence_is_a_cause(name: str) -> None:
    content, expected = CASES[name]
    assert [cause.text for cause in find_causes({**BASE, **content})] == expected


def test_what_is_nearer_to_the_host_comes_first() -> None:
    bundle = dict(BASE)
    for content, _ in reversed(CASES.values()):
        bundle |= {name: value for name, value in content.items() if name != "manifest.json"}
    sources = [cause.source.partition("/")[0] for cause in find_causes(bundle)]
    assert sources == sorted(sources, key=["range", "checks.json", "agents.json", "runs",
                                           "deadletters.json", "logs"].index)  # fmt: skip


def test_heartbeats_of_a_stored_run_are_old_by_nature() -> None:
    offline = MANIFEST | {"live": False}
    old = agent("c1", beat_at="2026-11-20T00:00:00+00:00")
    assert find_causes({"manifest.json": offline, "agents.json": [old]}) == []
