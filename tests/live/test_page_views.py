"""Test that every view of the page is readable and accessible with realistic data."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from broadside.coordinator.core.summary import (
    CanaryPhase,
    CanaryStep,
    CanarySummary,
    Translation,
    UnitChange,
    Units,
    UnitSummary,
)
from tests.live.browser_pages import CHROMIUM, MonitoredPage
from tests.live.populated_site import FAILED, LIVE, OVER, Populated, populated

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="make tools")

# If this is set, screenshots of the views will be stored in this folder.
SHOTS = os.environ.get("BROADSIDE_PAGE_SHOTS")
# Views by name, with a text that is shown when the view is complete.
VIEWS = {
    "runs": ("#/runs", "Launch a run"),
    "run-live": (f"#/run/{LIVE}", "Second "),
    "run-over": (f"#/run/{OVER}", "Open the report"),
    "run-failed": (f"#/run/{FAILED}", "Open the report"),
    "run-imported": ("#/run/{imported}", "Open the report"),
    "burst": (f"#/run/{OVER}/burst/2", "Burst 2 of 3"),
    "compare": (f"#/compare?a={FAILED}&b={OVER}", "fleet received"),
    "studies": ("#/studies", "Drill"),
    "study-sweep": ("#/study/{sweep}", "knee"),
    "study-search": ("#/study/{search}", "offered"),
    "study-matrix": ("#/study/{matrix}", "cef"),
    "study-scaleout": ("#/study/{scaleout}", "Steps"),
    "study-drill": ("#/study/{drill}", "Outages"),
    "study-running": ("#/study/{running}", "running"),
    "schedules": ("#/schedules", "saturdays-before-the-change-window"),
    "history": ("#/history", "Latest run"),
    "agents": ("#/agents", "Notices of finished runs"),
    "launch": ("#/launch/scale-180g", "Launch"),
    "api": ("#/api", "/v1/me"),
    "signin": ("#/signin", "Token"),
    "report": (f"report.html#{OVER}", "Save as a file"),
    "report-of-study": ("report.html#study/{sweep}", "Save as a file"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Populated]:
    with populated(tmp_path_factory.mktemp("views")) as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def monitored(browser: Browser, site: Populated) -> Iterator[MonitoredPage]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    monitored = MonitoredPage.over(page, site.url)
    yield monitored
    monitored.print_state()
    page.close()


def shoot(page: Page, name: str) -> None:
    """Store a screenshot of the view as it is now if ``SHOTS`` is set."""
    if SHOTS is not None:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("name", VIEWS)
def test_view_has_no_faults(name: str, site: Populated, monitored: MonitoredPage) -> None:
    path, text = VIEWS[name]
    page = monitored.page
    monitored.open(f"{site.url}/{path.format(imported=site.imported, **site.studies)}")
    expect(page.locator("body")).to_contain_text(text, timeout=60_000)
    if name in ("burst", "run-over", "run-failed", "run-imported"):
        expect(page.locator(".run-title .badge")).to_have_text(
            re.compile("pass|fail|incon|measured")
        )
    if name.startswith("study-") and name != "study-running":
        expect(page.locator("img.drawing").first).to_be_visible()
    if name.startswith("report"):
        expect(page.locator("iframe")).to_be_visible()
    faults = []
    for width in (1280, 390):
        for theme in ("light", "dark"):
            faults += monitored.faults(theme, width)
            shoot(page, f"{name}-{width}-{theme}")
    if not name.startswith("report"):
        faults += monitored.paper_faults()
    assert faults == [], "\n".join(faults)
    assert monitored.errors == []
    assert monitored.foreign_requests == []


def device_results(start_at: datetime) -> dict[str, Any]:
    """Return two units, of which the second joined late, and canaries of a burst of 30 s."""

    def unit(address: str, first_step: int) -> UnitSummary:
        return UnitSummary(
            address=address,
            clients_count=2,
            received_bits_per_second=2e8,
            first_at=start_at + timedelta(seconds=2 * first_step),
            last_at=start_at + timedelta(seconds=30),
            bits_per_second=(0.0,) * first_step + (2e8,) * (15 - first_step),
            flows=(8,) * 15,
        )

    joined_at = start_at + timedelta(seconds=10)
    units = Units(
        translation=Translation.UNITS,
        pairs_count=4,
        count=2,
        imbalance_ratio=1.0,
        jain_ratio=1.0,
        start_at=start_at,
        every_s=2,
        units=(unit("198.51.100.4", 0), unit("2001:db8::5", 5)),
        changes=(UnitChange(address="2001:db8::5", change="joined", at=joined_at, resolution_s=2),),
    )
    phase = CanaryPhase(
        tested_count=60, leaked_count=3, leak_ratio=0.05, leak_low_ratio=0.01, leak_high_ratio=0.16
    )
    steps = tuple(
        CanaryStep(
            at=start_at + timedelta(seconds=10 * number),
            tested_count=20,
            leaked_count=number,
            allowed_blocked_count=0,
            received_bits_per_second=rate,
        )
        for number, rate in enumerate((1e9, None, 5e8))
    )
    canary = CanarySummary(
        consent="N. Owner",
        pairs_count=4,
        before=phase,
        during=phase,
        after=phase,
        first_leak_at=joined_at,
        every_s=10,
        steps=steps,
    )
    return {"units": units.model_dump(mode="json"), "canary": canary.model_dump(mode="json")}


def with_device_results(route: Route) -> None:
    """Answer a request for the events of a run that has ended. Add results of the device."""

    def change(match: re.Match[str]) -> str:
        summary = json.loads(match[1])
        for burst in summary["bursts"]:
            burst |= device_results(datetime.fromisoformat(burst["planned_start_at"]))
        return f"event: summary\ndata: {json.dumps(summary)}"

    response = route.fetch()
    body, count = re.subn(r"event: summary\ndata: (.*)", change, response.text())
    assert count == 1
    route.fulfill(response=response, body=body)


def test_units_and_canaries_have_no_faults(site: Populated, monitored: MonitoredPage) -> None:
    page = monitored.page
    page.route("**/events*", with_device_results)
    monitored.open(f"{site.url}/{VIEWS['burst'][0]}")
    lanes = {
        "Units by second": "Second 30: 198.51.100.4 200, 2001:db8::5 200",
        "Canaries by second": "Second 30: leaked canaries (%) 10, received payload (Gbit/s) 0.5",
    }
    for title, text in lanes.items():
        chart = page.locator("figure.chart", has=page.get_by_role("heading", name=title))
        expect(chart.locator(".readout")).to_have_text(text)
        chart.locator("canvas").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Home")
        expect(chart.locator(".readout")).to_have_text(re.compile("^Second 1: .* (0|1)$"))
        page.keyboard.press("Escape")
    rows = page.get_by_role("region", name="Units of the device").get_by_role("row")
    expect(rows).to_contain_text(["Unit", "none", "joined "])
    faults = monitored.all_faults()
    shoot(page, "burst-device")
    assert faults + monitored.paper_faults() == []
    assert monitored.errors == []


@pytest.mark.parametrize("path", [f"/v1/runs/{OVER}/report", "/v1/studies/{sweep}/report"])
def test_report_has_no_faults(
    path: str, site: Populated, monitored: MonitoredPage, tmp_path: Path
) -> None:
    answer = httpx.get(site.url + path.format(**site.studies), params={"format": "html"})
    file = tmp_path / "report.html"
    file.write_text(answer.raise_for_status().text, "utf-8")
    monitored.open(file.as_uri())
    faults = []
    for width in (1280, 390):
        for theme in ("light", "dark"):
            faults += monitored.file_faults(theme, width)
            kind = "study" if "studies" in path else "run"
            shoot(monitored.page, f"html-{kind}-{width}-{theme}")
    assert faults == [], "\n".join(faults)
    assert monitored.errors == []


def test_comparison_names_significant_differences(
    site: Populated, monitored: MonitoredPage
) -> None:
    monitored.open(f"{site.url}/{VIEWS['compare'][0]}")
    row = monitored.page.get_by_role("row", name="fleet received, payload")
    expect(row).to_contain_text(re.compile(r"\+17\d\.\d\d %.*significant"))
    expect(row).not_to_contain_text("not significant")
    tile = monitored.page.get_by_role("region", name="Comparison", exact=True)
    expect(tile).to_contain_text("significant at 95 %")


# A page after faults of the network -----------------------------------------------------------


def fail(page: Page, pattern: str, times: int) -> None:
    """Abort the first ``times`` requests for a URL, as Chromium does when a network changes."""
    page.route(pattern, lambda route: route.abort("internetdisconnected"), times=times)


def test_page_starts_although_a_script_was_not_loaded_at_first(
    site: Populated, monitored: MonitoredPage
) -> None:
    fail(monitored.page, "**/theme.js", 1)
    monitored.open(f"{site.url}/#/agents")
    expect(monitored.page.get_by_text("7 of 9 ready")).to_be_visible()
    assert monitored.failed_requests


def test_page_names_a_script_that_is_never_loaded(
    site: Populated, monitored: MonitoredPage
) -> None:
    fail(monitored.page, "**/theme.js", 100)
    monitored.open(f"{site.url}/#/agents")
    expect(monitored.page.get_by_role("alert")).to_contain_text("could not be loaded")


def test_view_is_shown_after_failed_requests(site: Populated, monitored: MonitoredPage) -> None:
    fail(monitored.page, "**/v1/me", 1)
    fail(monitored.page, "**/v1/agents?*", 2)
    monitored.open(f"{site.url}/#/agents")
    expect(monitored.page.get_by_text("7 of 9 ready")).to_be_visible()
    assert len(monitored.failed_requests) >= 3


def test_request_without_a_response_is_repeated(site: Populated, monitored: MonitoredPage) -> None:
    page = monitored.page
    page.clock.install()
    # The first request never gets a response.
    page.route("**/v1/agents?*", lambda _: None, times=1)
    with page.expect_request("**/v1/agents?*"):
        monitored.open(f"{site.url}/#/agents")
    page.clock.run_for(31_000)
    expect(page.get_by_text("7 of 9 ready")).to_be_visible()
