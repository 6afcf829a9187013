"""Test the page in Chromium over a lab, from sign-in and launch to comparison and report."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from broadside.coordinator.studies.study import Study, StudySpec
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.records.collection import Collection
from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.browser_pages import MonitoredPage, quiet_chromium
from tests.live.labs import new_prefix
from tests.live.live_site import Site
from tests.live.waiting import wait_for
from tests.unit.coordinator.studies.samples import IN_MODES, MODES, SWEPT

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

PAIRS = 2
GOING = "20261120-130000-w-00ab"
# If this is set, screenshots of the views will be stored in this folder.
SHOTS = os.environ.get("BROADSIDE_PAGE_SHOTS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Coordinator with sign-in, over a lab with a ready fleet.

    Attributes:
        chromium: Launcher of a Chromium without the network changes of other tests.
    """

    url: str
    operator: str
    viewer: str
    site: Site
    chromium: Path


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("page")
    spec = LabSpec(
        pairs_count=PAIRS,
        prefix=new_prefix(),
        nic_bits_per_second=40_000_000,
        firewall_bits_per_second=60_000_000,
    )
    with built(spec, folder / "lab") as lab, Site(folder) as site:
        tokens = {}
        for role in ("operator", "viewer"):
            made = site.run("token", "add", f"the-{role}", "--role", role, "-o", "json")
            assert made.returncode == 0, made.stderr
            tokens[role] = json.loads(made.stdout)["token"]
        asyncio.run(store_studies(folder / "data"))
        with staged(
            lab,
            folder,
            coordinator={"BROADSIDE_SIGN_IN": "on"},
            token=tokens["viewer"],
        ) as staged_site:
            url = staged_site.coordinator.url
            namespace, port = lab.clients[0].namespace, int(url.rpartition(":")[2])
            assert namespace is not None
            with quiet_chromium(namespace, port, folder) as chromium:
                yield Stage(url=url, site=site, chromium=chromium, **tokens)


@pytest.fixture(scope="module")
def only_page(stage: Stage) -> Iterator[MonitoredPage]:
    """Yield a page to use for all tests, because a browser needs a second of CPU time to start."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=stage.chromium, args=["--no-sandbox"])
        yield MonitoredPage.over(browser.new_page(), stage.url)
        browser.close()


@pytest.fixture
def monitored(only_page: MonitoredPage) -> Iterator[MonitoredPage]:
    """Sign out and remove data of other tests before a test uses the page."""
    page = only_page.page
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", media="screen")
    page.goto(f"{only_page.origin}/report.html")
    page.evaluate("sessionStorage.clear(); localStorage.clear()")
    only_page.errors.clear()
    only_page.foreign_requests.clear()
    only_page.failed_requests.clear()
    yield only_page
    only_page.print_state()
    assert only_page.errors == []
    assert only_page.foreign_requests == []


async def store_studies(data: Path) -> None:
    """Store a finished study, and a study that will wait for an hour before the next trial."""
    now = datetime.now(UTC)
    over = SWEPT.model_copy(update={"ended_at": now})
    waiting = StudySpec(name="w", question=MODES, spec=IN_MODES.spec.spec, pause_s=3600)
    first = IN_MODES.results[:1]
    going = Study(study_id=GOING, spec=waiting, created_at=now, created_by="me", results=first)
    fabric = open_fabric(FabricSettings(data_dir=data))
    try:
        collection = Collection(fabric.private, "studies", Study)
        for item in (over, going):
            await collection.put(item.study_id, item)
    finally:
        await fabric.close()


def test_chart_shows_every_second_with_few_pixels(monitored: MonitoredPage, stage: Stage) -> None:
    """Test 1,740 s on about 300 px with each fault at several positions."""
    seen = monitored.page.evaluate(_DRAWN, module(monitored.page, stage.url, "lines.js"))
    assert seen == {"dips": 7, "lone": 7, "gaps": 7, "dips in a band": 7, "gaps in a band": 7}


def test_nested_elements_are_added_in_order(monitored: MonitoredPage, stage: Stage) -> None:
    parts = monitored.page.evaluate(_NESTED, module(monitored.page, stage.url, "dom.js"))
    assert parts == ["abc", "abc"]


def module(page: Page, url: str, name: str) -> str:
    """Return the URL of a script, read on a page with few other elements."""
    page.goto(f"{url}/report.html")
    path = page.locator("script[type=module]").get_attribute("src")
    assert path is not None
    return f"{path.rpartition('/')[0]}/{name}"


_NESTED = """async (path) => {
  const { fill, h } = await import(path);
  const parts = () => ["a", [null, ["b", [h("b", {}, "c")]]]];
  return [h("p", {}, parts()), fill(h("p"), parts())].map((element) => element.textContent);
}"""
_DRAWN = (Path(__file__).parent / "chart_pixels.js").read_text("utf-8")


def sign_in(page: Page, url: str, token: str) -> None:
    if page.url != f"{url}/#/signin":
        page.goto(f"{url}/")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def launch(page: Page, **fields: str) -> str:
    """Use the form to launch a run, and return its id."""
    page.get_by_role("link", name="Launch", exact=True).click()
    page.get_by_label("Scenario").select_option("smoke")
    page.get_by_label(re.compile("^Target")).fill("5")
    for label, value in fields.items():
        page.get_by_label(re.compile(f"^{label.replace('_', ' ')}")).fill(value)
    page.get_by_text("More fields").click()
    page.get_by_label("One FIELD=VALUE per line").fill("scale=100\nlead_s=8\nlate_after_s=5")
    expect(page.get_by_text("Feasible", exact=True)).to_be_visible()
    shoot(page, "launch")
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile("#/run/"))
    return page.url.rpartition("/")[2]


def value_of(page: Page, tile: str) -> str:
    return page.locator(".tile", has_text=tile).locator(".value").inner_text()


def shoot(page: Page, name: str) -> None:
    """Store screenshots of a view if ``SHOTS`` is set."""
    if SHOTS is None:
        return
    size = page.viewport_size
    for width in (1280, 390):
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(400)
            page.screenshot(path=Path(SHOTS) / f"{name}-{width}-{theme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(size or {"width": 1280, "height": 900})


def test_operator_launches_watches_aborts_and_reads_the_report(
    stage: Stage, monitored: MonitoredPage
) -> None:
    page = monitored.page
    page.goto(f"{stage.url}/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    faults = monitored.all_faults()
    shoot(page, "signin")
    sign_in(page, stage.url, stage.operator)
    expect(page.locator(".role")).to_have_text("the-operator, operator")
    expect(page.get_by_text("No run yet")).to_be_visible()
    faults += monitored.all_faults()
    shoot(page, "runs-empty")

    run_id = launch(page, Burst_duration="8")
    expect(page.locator(".stage")).to_contain_text("T\u2212")
    expect(page.locator(".stage")).to_contain_text("armed 2 of 2")
    expect(page.locator(".badge", has_text="running")).to_be_visible()
    # Throughput should be shown during the burst in the headline, the chart and the heat map.
    fleet_tile = page.locator(".tile", has_text="Fleet received")
    expect(fleet_tile.locator(".tile-unit")).to_have_text("Mbit/s")
    assert value_of(page, "Verdict") == "none yet"
    expect(page.locator(".readout").first).to_contain_text(re.compile(r"Second \d+: .*fleet \d"))
    expect(page.locator(".heat .readout")).to_contain_text("2 pairs")
    faults += monitored.faults("dark", 390) + monitored.faults("light", 1280)
    # The verdict and the device counter should appear without a reload.
    badge = page.locator(".run-title .badge")
    expect(badge).to_have_text(re.compile("pass|fail|inconclusive"), timeout=60_000)
    assert float(value_of(page, "Completeness")) > 90
    assert value_of(page, "Device counter") != "unknown"
    heat, readout = page.get_by_role("application"), page.locator(".heat .readout")

    def has_selected_a_pair() -> bool:
        # The page may draw the verdict again after a key was pressed.
        heat.focus()
        heat.press("ArrowDown")
        return "pair-00" in readout.inner_text()

    wait_for("a selected second", has_selected_a_pair)
    page.locator(".chart summary", has_text="As a table").first.click()
    expect(page.get_by_role("columnheader", name="fleet")).to_be_visible()
    page.get_by_text("Charts of the report").click()
    expect(page.locator("img.drawing").first).to_be_visible()
    faults += monitored.all_faults()
    shoot(page, "run-over")

    page.get_by_role("link", name="Open the report").click()
    report = page.frame_locator("iframe")
    expect(report.get_by_text(run_id).first).to_be_visible()
    expect(page.get_by_role("link", name="Save as a file")).to_be_visible()
    shoot(page, "report")
    page.get_by_role("link", name="Back to the run").click()

    second = launch(page, Burst_duration="60")
    expect(page.locator(".badge", has_text="running")).to_be_visible()
    expect(fleet_tile.locator(".tile-unit")).to_have_text("Mbit/s")
    shoot(page, "run-live")
    page.get_by_role("button", name="Abort the run").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(second)
    expect(dialog).to_contain_text("cost")
    expect(dialog.get_by_role("button", name="Keep it running")).to_be_focused()
    shoot(page, "abort")
    dialog.get_by_label("Reason (stored with the run)").fill("seen enough")
    dialog.get_by_role("button", name="Abort the run").click()
    expect(page.get_by_text("Aborted by the-operator")).to_be_visible()
    expect(badge).to_have_text(re.compile("aborted"), timeout=40_000)
    expect(page.get_by_role("button", name="Abort the run")).to_have_count(0)
    expect(page.get_by_text("not measured").first).to_be_visible()
    faults += monitored.all_faults()
    shoot(page, "run-aborted")

    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.locator(".runs li")).to_have_count(2)
    faults += monitored.all_faults()
    shoot(page, "runs")
    for run in (run_id, second):
        page.get_by_label(f"Compare {run}").check()
    page.get_by_role("link", name="Compare selected runs").click()
    expect(page.get_by_role("cell", name="Received, payload")).to_be_visible()
    faults += monitored.all_faults()
    shoot(page, "compare")
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    expect(page.get_by_text("No schedule yet")).to_be_visible()
    faults += monitored.all_faults()
    shoot(page, "schedules")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    assert faults == []


_DATE_IS_OFF = """(offMs) => {
  const Real = Date;
  Date = class extends Real {
    constructor(...given) {
      given.length ? super(...given) : super(Real.now() + offMs);
    }
    static now() {
      return Real.now() + offMs;
    }
  };
}"""


def test_page_shows_current_second_with_a_wrong_browser_clock(
    stage: Stage, monitored: MonitoredPage
) -> None:
    sign_in(monitored.page, stage.url, stage.operator)
    run_id = launch(monitored.page, Burst_duration="25")
    token = {"Authorization": f"Bearer {stage.viewer}"}
    with httpx.Client(base_url=stage.url, headers=token) as http:
        (burst,) = http.get(f"/v1/runs/{run_id}").json()["bursts"]
    start_s = datetime.fromisoformat(burst["planned_start_at"]).timestamp()
    # The page should not show the run until the end.
    monitored.page.goto(f"{stage.url}/#/schedules")
    browser = monitored.page.context.browser
    assert browser is not None
    page = browser.new_page()
    page.goto(f"{stage.url}/report.html")
    page.evaluate(f"sessionStorage.setItem('broadside-token', '{stage.viewer}')")
    page.add_init_script(f"({_DATE_IS_OFF})(Number(sessionStorage.getItem('off-ms')))")
    for second, off_h in ((0.4, 0), (4.7, 5), (9.1, -7.5), (13.6, 100)):
        page.evaluate(f"sessionStorage.setItem('off-ms', {off_h * 3.6e6})")
        time.sleep(max(0.0, start_s + second - time.time()))
        # Use a changed URL to load a new document.
        page.goto(f"{stage.url}/?opened={second}#/run/{run_id}")
        parts = page.locator(".stage strong")
        expect(parts).to_have_text(re.compile("^(Second|Collecting|Over)"))
        far_s = []
        for _ in range(10):
            before_s = time.time() - start_s
            match = re.match(r"Second (\d+) of 25", parts.inner_text())
            after_s = time.time() - start_s
            if match is None:
                # The page opens late if the machine is overloaded.
                assert after_s > 24
                break
            # The number should change with every full second.
            shown_s = int(match[1]) - 1
            far_s.append(max(before_s - shown_s - 1, shown_s - after_s, 0.0))
            page.wait_for_timeout(130)
        # If the clock is wrong, it will be wrong in all samples.
        best_s = min(far_s, default=0.0)
        assert best_s < 1, f"at {second} s, by a clock {off_h} h off"
    page.goto(f"{stage.url}/#/agents")
    expect(page.get_by_text("4 of 4 ready")).to_be_visible()
    page.close()
    token = {"Authorization": f"Bearer {stage.operator}"}
    # The remaining seconds are not needed.
    with httpx.Client(base_url=stage.url, headers=token) as http:
        body = {"by": "me", "reason": "seen enough"}
        aborted = http.post(f"/v1/runs/{run_id}/abort", json=body)
    # The run may already be over if the pages were slow.
    assert aborted.status_code in (202, 409), aborted.text
    monitored.page.goto(f"{stage.url}/#/run/{run_id}")
    badge = monitored.page.locator(".run-title .badge")
    expect(badge).to_have_text(re.compile("pass|fail|inconclusive"), timeout=60_000)


def test_agents_history_schedules_and_api_views_work(
    stage: Stage, monitored: MonitoredPage
) -> None:
    page = monitored.page
    sign_in(page, stage.url, stage.operator)
    run_id = launch(page, Burst_duration="5")
    faults: list[str] = []
    page.get_by_role("link", name="Agents", exact=True).click()
    expect(page.get_by_text("4 of 4 ready")).to_be_visible()
    clocks = page.get_by_role("cell", name=re.compile("^chrony, ±"))
    # An overloaded chronyd needs a long time to synchronise.
    expect(clocks).to_have_count(4, timeout=120_000)
    faults += monitored.all_faults()
    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("button", name="Add schedule").click()
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Scenario").select_option("loopback")
    page.get_by_label("Cron").fill("0 2 * *")
    page.get_by_label("Time zone").fill("Europe/Amsterdam")
    with monitored.refused(422):
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("cron")
    page.get_by_label("Cron").fill("0 2 * * *")
    faults += monitored.all_faults()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".next li")).to_have_count(5)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".badge", has_text="paused")).to_be_visible()
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Cron").fill("30 3 * * 6")
    page.get_by_label("or once at").fill("2030-01-01T10:00")
    with monitored.refused(422):
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("set exactly one")
    page.get_by_label("or once at").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".card code", has_text="30 3 * * 6")).to_be_visible()
    expect(page.locator(".badge", has_text="paused")).to_be_visible()
    page.get_by_role("link", name="API", exact=True).click()
    me = page.locator("details.operation", has_text="GET /v1/me")
    me.locator("summary").click()
    me.get_by_role("button", name="Try it").click()
    expect(me.locator("pre")).to_contain_text('"name": "the-operator"')
    faults += monitored.all_faults()
    page.goto(f"{stage.url}/#/run/{run_id}")
    badge = page.locator(".run-title .badge")
    expect(badge).to_have_text(re.compile("pass|fail|inconclusive"), timeout=60_000)
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Workbook (xlsx)").click()
    assert saved.value.suggested_filename == f"{run_id}.xlsx"
    page.get_by_role("link", name="History").click()
    expect(page.locator(".readout")).to_contain_text("95 % interval")
    of, card = (page.locator(item).bounding_box() for item in ("canvas", ".card:has(canvas)"))
    assert of and card and of["width"] > 0.9 * card["width"]
    expect(page.get_by_role("link", name=run_id).first).to_be_visible()
    faults += monitored.all_faults()
    assert faults == []


def test_saving_an_unchanged_schedule_changes_nothing(
    stage: Stage, monitored: MonitoredPage
) -> None:
    """Test fields that are not in the form, and a time for another zone than the browser's."""
    page = monitored.page
    once = {"at": "2030-07-01T10:00:30", "missed_limit_s": 7200}
    often = {"cron": "0 3 * * *", "until_at": "2031-01-01T00:00", "missed_limit_s": 120}
    bearer = {"Authorization": f"Bearer {stage.operator}"}
    with httpx.Client(base_url=stage.url, headers=bearer) as client:

        def schedule(name: str) -> dict[str, object]:
            result: dict[str, object] = client.get(f"/v1/schedules/{name}").json()["schedule"]
            return {key: result[key] for key in ("cron", "at", "until_at", "missed_limit_s")}

        for name, requested in (("once", once), ("often", often)):
            body = {"name": name, "scenario": "loopback", "timezone": "Asia/Tokyo", **requested}
            client.post("/v1/schedules", json=body).raise_for_status()
        before = {name: schedule(name) for name in ("once", "often")}
        assert before["once"]["at"] == "2030-07-01T01:00:30Z"
        sign_in(page, stage.url, stage.operator)
        page.get_by_role("link", name="Schedules").click()
        for name, at in (("once", "2030-07-01T10:00"), ("often", "")):
            item = page.get_by_role("listitem").filter(has=page.get_by_text(name, exact=True))
            item.get_by_role("button", name="Change").click()
            expect(page.get_by_label("or once at")).to_have_value(at)
            page.get_by_role("button", name="Save").click()
            expect(page.get_by_role("button", name="Save")).to_have_count(0)
        assert {name: schedule(name) for name in before} == before
        for name in before:
            client.delete(f"/v1/schedules/{name}").raise_for_status()


def test_viewer_has_read_access_only(stage: Stage, monitored: MonitoredPage) -> None:
    page = monitored.page
    page.goto(f"{stage.url}/")
    page.get_by_label("Token").fill("not-a-token")
    with monitored.refused(401):
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("Token rejected")
    sign_in(page, stage.url, stage.viewer)
    expect(page.locator(".role")).to_have_text("the-viewer, viewer")
    expect(page.get_by_role("link", name="Launch")).to_have_count(0)
    page.goto(f"{stage.url}/#/launch")
    expect(page.get_by_text("Operators only")).to_be_visible()
    with monitored.refused(404):
        page.goto(f"{stage.url}/#/run/20260101-000000-nothing-0000")
        expect(page.get_by_role("alert")).to_contain_text("no such run")
    # The skip link should be first and the focus should be visible for users of the keyboard.
    page.goto(f"{stage.url}/#/runs")
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_study_shows_its_chart_and_can_be_aborted(stage: Stage, monitored: MonitoredPage) -> None:
    page = monitored.page
    sign_in(page, stage.url, stage.operator)
    page.get_by_role("link", name="Studies").click()
    expect(page.locator(".schedules li")).to_have_count(2)
    faults = monitored.all_faults()
    shoot(page, "studies")
    page.get_by_role("link", name="Sweep").click()
    expect(page.locator(".sentence")).to_contain_text("the knee is at 8, with 8 Gbit/s")
    row = page.get_by_role("row", name=re.compile("streams_count 8"))
    expect(row).to_contain_text("knee")
    expect(row).to_contain_text("8 Gbit/s")
    expect(page.locator("img.drawing").first).to_be_visible()
    expect(page.get_by_role("button", name="Abort the study")).to_have_count(0)
    faults += monitored.all_faults()
    shoot(page, "study-over")

    page.goto(f"{stage.url}/#/study/{GOING}")
    expect(page.locator(".title .badge")).to_have_text("running")
    expect(page.get_by_role("row", name=re.compile("off"))).to_contain_text("10 Gbit/s")
    page.get_by_role("button", name="Abort the study").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(GOING)
    dialog.get_by_label("Reason (stored with the study)").fill("seen enough")
    dialog.get_by_role("button", name="Abort the study").click()
    expect(page.locator(".title .badge")).to_have_text("cancelled by the-operator: seen enough")
    faults += monitored.all_faults()
    shoot(page, "study-aborted")
    assert faults == []


ORIGINAL = Path(__file__).parent.parent / "data" / "original"


def test_import_shows_its_data_and_names_missing_data(
    stage: Stage, monitored: MonitoredPage
) -> None:
    table = ("import", "original", str(ORIGINAL / "seed-280s-30clients.csv"), "-o", "json")
    imported = stage.site.run(*table)
    assert imported.returncode == 0, imported.stderr
    run_id = json.loads(imported.stdout)["run_id"]
    page = monitored.page
    sign_in(page, stage.url, stage.viewer)
    page.goto(f"{stage.url}/#/run/{run_id}")
    expect(page.locator(".run-title .badge")).to_have_text(re.compile("inconclusive"))
    expect(page.get_by_text("No data for this burst")).to_have_text(
        "No data for this burst: pairs by second, rates of the pairs, CPU utilization, "
        "round-trip time, retransmits. The imported table has one mean for each pair and burst. "
        "Charts by second show this mean."
    )
    expect(page.get_by_role("region", name="Bursts").get_by_role("row")).to_have_count(7)
    expect(page.locator("img.drawing").first).to_be_visible()
    # The drawings of the report have hidden names, and appear one after another.
    names = page.locator(".chart:visible h3:not(.unseen)")
    expect(names).to_have_text(["Throughput of the fleet"])
    expect(page.locator("aside dt", has_text="Imported")).to_be_visible()
    expect(page.locator("aside dt", has_text="Launched")).to_have_count(0)
    expect(page.locator(":text('Nothing reported yet'):visible")).to_have_count(0)
    expect(page.locator(".figures-grid")).not_to_contain_text("Rates of the pairs")
    faults = monitored.all_faults() + monitored.paper_faults()
    shoot(page, "import")
    assert faults == []
