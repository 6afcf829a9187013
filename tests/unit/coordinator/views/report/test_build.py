"""Tests for the run report in HTML and JSON."""

import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import httpx
import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.run_spec import CounterRequirement
from broadside.coordinator.request_errors import RunNotOver, UnknownRun
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.import_storage import store_table
from broadside.coordinator.runs.run_documents import read_fleet
from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.document import Report
from broadside.coordinator.views.report.network_path import network_path
from broadside.coordinator.views.report.render import html
from broadside.coordinator.views.report.stored_source import Source, gather
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import EngineReport, Pacing
from broadside.exchange.records import Document
from tests.synthetic import Plant
from tests.unit.coordinator.imports import small_tables
from tests.unit.coordinator.presences import NOW, fleet
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.charts.views import FAULTY, ended


async def sourced(fabric: Fabric, plant: Plant = FAULTY) -> Source:
    return await gather(fabric.records, await store_run(fabric, plant), NOW)


def section(report: Report, name: str) -> str:
    """Return a section as JSON text."""
    result = next(part for part in report.sections if part.id == name)
    return result.model_dump_json()


class Page(HTMLParser):
    """Parser to get the links, scripts and images from a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetches: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.images = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.images += tag == "svg"
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "poster", "srcset") and value:
                self.fetches.append(value)
            assert not name.startswith("on")


async def test_page_has_no_scripts_or_external_links(fabric: Fabric) -> None:
    source = await sourced(fabric)
    text = html(build(source), source)
    page = Page(text)
    assert page.scripts == 0
    assert [f for f in page.fetches if not f.startswith(("#", "data:image/png;base64,"))] == []
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    charts = [chart for part in build(source).sections for chart in part.charts]
    # There are wide and narrow charts, and the hatches.
    assert page.images == 2 * len(charts) + 1
    assert len(text) < 2_000_000


async def test_report_has_all_sections(fabric: Fabric) -> None:
    report = build(await sourced(fabric))
    fields = {part.id: section(report, part.id) for part in report.sections}
    assert set(fields) >= {
        *("figures", "charts", "method", "planned", "bursts", "pairs", "clocks"),
        *("reconciliation", "completeness", "trends", "configuration", "generators", "device"),
        *("deviations", "recompute"),
    }
    for part, parts in {
        "method": [
            "MSER",
            "interpolating cumulative bytes",
            "Missing data is never zero",
            "IP layer",
        ],
        "planned": ["streams per pair", "requested", "match"],
        "clocks": ["client-0", "server-0", "chrony", "uncertainty before", "uncertainty after"],
        "reconciliation": ["lag", "header overhead", "residual", "Identified causes"],
        "completeness": ["abandoned", "missed", "null", "pair-027", "no agent claimed the job"],
        "deviations": ["NOT met", "300 s", "Reference test", "Traffic mix"],
        "device": ["SKU", "not stated"],
        "recompute": [report.summary_sha256, "--recompute"],
        "configuration": ["traffic.streams_count", "objective.tolerance_ratio", "me"],
        "generators": ["iperf3 3.18", "10.2.0.4:5201"],
    }.items():
        for token in parts:
            assert token in fields[part], (part, token)


def with_engines(source: Source, *engines: EngineReport) -> Source:
    """Return the same run where the first pairs have these engine reports."""
    ends = source.ends[0]
    reports = {
        index: report.model_copy(update={"engine": engine})
        for (index, report), engine in zip(sorted(ends.reports.items()), engines, strict=True)
    }
    return replace(source, ends={0: replace(ends, reports=reports)})


def rows_of(source: Source, name: str, table: int = 0) -> dict[str, tuple[str, ...]]:
    part = next(part for part in build(source).sections if part.id == name)
    return {row[0]: row[1:] for row in part.tables[table].rows}


async def test_planned_table_compares_requested_and_effective_settings(fabric: Fabric) -> None:
    source = await sourced(fabric, Plant(pairs=3, bursts=1))
    fields = {
        "window_bytes": 400_000,
        "dscp": 46,
        "stream_bits_per_second": 5_000_000,
        "mss_bytes": 1400,
    }
    traffic = source.plan.spec.traffic.model_copy(update=fields)
    spec = source.plan.spec.model_copy(update={"traffic": traffic, "scale": 1.0})
    source = replace(source, plan=source.plan.model_copy(update={"spec": spec}))
    as_requested = EngineReport(
        engine="iperf3",
        # A larger value than requested is accepted.
        window_bytes=425_984,
        tos=184,
        stream_bits_per_second=5_000_000,
        pacing=Pacing.ENGINE,
        # This is the value without the timestamp option.
        mss_bytes=1388,
    )
    clamped = as_requested.model_copy(
        update={"window_bytes": 212_992, "tos": 0, "stream_bits_per_second": 4_000_000}
    )
    failed = clamped.model_copy(update={"error": "not started"})
    rows = rows_of(with_engines(source, as_requested, clamped, failed), "planned")
    assert rows["window, bytes"] == ("400000", "425984 in 1, 212992 in 1", "NO: 1 of 2")
    assert rows["DSCP"] == ("46", "46 in 1, 0 in 1", "NO: 1 of 2")
    assert rows["rate per stream"] == ("5 Mbit/s", "5 Mbit/s in 1, 4 Mbit/s in 1", "NO: 1 of 2")
    assert rows["pacing"] == ("engine", "engine", "yes, 2 of 2")
    assert rows["MSS, bytes"] == ("1400", "1388", "yes, 2 of 2")
    assert rows["processes per pair"] == ("1", "1", "yes, 2 of 2")
    assert rows["congestion control of the sender"][2] == "not reported"


async def test_report_shows_command_lines_and_script_files(fabric: Fabric) -> None:
    source = await sourced(fabric, Plant(pairs=2, bursts=1))
    parts = tuple(
        EngineReport(engine="iperf3", argv=("iperf3", "--port", port)) for port in ("1", "2")
    )
    two = parts[0].model_copy(update={"processes": parts})
    ftp = EngineReport(
        engine="ftp", argv=("lftp", "-f", "/x/script"), files={"script": "pget -n 64 1000\n"}
    )
    changed = with_engines(source, two, ftp)
    part = next(part for part in build(changed).sections if part.id == "generators")
    rows = [
        row for table in part.tables if table.title.startswith("Pairs of") for row in table.rows
    ]
    assert [(row[0], row[-1]) for row in rows] == [
        ("pair-001, process 1", "iperf3 --port 1"),
        ("pair-001, process 2", "iperf3 --port 2"),
        ("pair-002", "lftp -f /x/script"),
    ]
    assert part.code == ("# pair-002: script\npget -n 64 1000\n",)


async def test_report_shows_agents_at_launch_time(fabric: Fabric) -> None:
    """Changes after the launch must not be shown in the report."""
    for agent in fleet(2):
        await fabric.records.fleet.beat(agent.model_copy(update={"kernel": "6.1", "vm_size": "D4"}))
    coordinator = Coordinator(fabric, now=lambda: NOW)
    plan = await coordinator.launch(scenarios.load("smoke", {"pairs_count": 2}), by="me")
    for agent in fleet(2):
        await fabric.records.fleet.beat(agent.model_copy(update={"kernel": "6.12"}))
    source = await sourced(fabric, Plant(pairs=2, bursts=1))
    launched = replace(source, plan=plan, fleet=await read_fleet(fabric.records, plan.run_id))
    text = section(build(launched), "generators")
    assert '"6.1"' in text
    assert "6.12" not in text
    assert "D4" in text
    assert '"server-002"' in text


async def test_hash_covers_the_stored_bytes(fabric: Fabric) -> None:
    source = await sourced(fabric)
    stored = await fabric.records.private.read_document(source.plan.run_id, Document.RUN)
    assert stored is not None
    assert build(source).summary_sha256 == hashlib.sha256(stored).hexdigest()


async def test_json_report_contains_the_summary(fabric: Fabric) -> None:
    """All metrics are taken from the summary."""
    source = await sourced(fabric)
    report = Report.model_validate_json(build(source).model_dump_json())
    assert report.summary == ended()[2]


async def test_external_text_is_escaped(fabric: Fabric) -> None:
    source = await sourced(fabric, Plant(pairs=3, bursts=1, null=1))
    evil = "<script>alert(1)</script>\"'"
    header = source.header.model_copy(update={"created_by": evil, "labels": {evil: evil}})
    object.__setattr__(source, "header", header)
    assert Page(html(build(source), source)).scripts == 0


async def test_running_run_has_no_report(fabric: Fabric) -> None:
    with pytest.raises(UnknownRun):
        await gather(fabric.records, "nothing", NOW)
    run_id = await store_run(fabric, bursts_over=1)
    with pytest.raises(RunNotOver):
        await gather(fabric.records, run_id, NOW)


async def test_api_serves_html_and_json(fabric: Fabric, api: httpx.AsyncClient) -> None:
    run_id = await store_run(fabric)
    path = f"/v1/runs/{run_id}/report"
    page = await api.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for arguments in ({"headers": {"Accept": "application/json"}}, {"params": {"format": "json"}}):
        answer = await api.get(path, **arguments)  # type: ignore[arg-type]
        assert json.loads(answer.text)["run_id"] == run_id
    assert (await api.get(path, params={"format": "docx"})).status_code == 422
    assert (await api.get("/v1/runs/none/report")).status_code == 404


async def test_imported_table_report_lists_charts_without_data(
    fabric: Fabric,
) -> None:
    text = "one mean for each pair and burst"
    assert text not in section(build(await sourced(fabric)), "charts")
    imported = await store_table(fabric.records, small_tables.parse(small_tables.fleet(3, 2)), NOW)
    source = await gather(fabric.records, imported.run_id, NOW)
    charts = section(build(source), "charts")
    assert text in charts
    assert '"throughput"' in charts
    # There are no seconds if a table was imported.
    assert '"heatmap"' not in charts
    page = html(build(source), source)
    assert text in page
    assert len(re.findall("Charts without data: Start errors", page)) == 1
    assert "no data for it" not in page


async def test_network_path_shows_counter_and_hides_unknown_address(fabric: Fabric) -> None:
    measured_plan = (await sourced(fabric)).plan
    device_counter = CounterRequirement(source="a-file-given-a-very-very-long-name.csv")
    pair = measured_plan.pairs[0]
    unknown = pair.endpoint.model_copy(update={"agent_id": "unknown", "address": "::"})
    plan = measured_plan.model_copy(
        update={
            "ledger": device_counter,
            "pairs": (pair.model_copy(update={"endpoint": unknown}), *measured_plan.pairs[1:]),
        }
    )
    _, boxes = network_path(plan)
    lines = [line for box in boxes for line in box]
    assert "::" not in " ".join(lines)
    assert "device counter: a-file-given-a-very-very-long-name.csv" in lines


async def test_report_has_network_path_and_signature_fields(fabric: Fabric) -> None:
    source = await sourced(fabric)
    servers = {pair.endpoint.agent_id for pair in source.plan.pairs}
    page = html(build(source), source)
    [path] = re.findall(r'<div class="path">.*?</div>', page, re.S)
    assert f"Servers: {len(servers)}, pairs: {len(source.plan.pairs)}" in path
    assert "Device under test" in path
    [block] = re.findall(r'<section id="signature">.*?</section>', page, re.S)
    assert all(f"<dt>{field}</dt>" in block for field in ("Name", "Place and date", "Signature"))
    assert source.plan.run_id in block
