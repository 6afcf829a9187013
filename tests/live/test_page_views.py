"""Test that every view of the page is readable and accessible with realistic data."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

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
