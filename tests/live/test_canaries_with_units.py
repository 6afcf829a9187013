"""Test 30 pairs through a device of four units that stops inspecting under load."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from broadside.lab.profiles import apply
from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.browser_pages import CHROMIUM, MonitoredPage
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.test_canaries_in_lab import IDLE, SIGNATURES
from tests.live.test_page_views import shoot

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone, pytest.mark.timeout(400)]

PAIRS, UNITS = 30, 4
# Twice the packets per second up to which the device inspects.
SPEC: Mapping[str, object] = {
    **IDLE,
    "pairs_count": PAIRS,
    "lead_s": 15,
    "burst_s": 15,
    "objective.target_bits_per_second": 20_000_000,
    "traffic.stream_bits_per_second": 800_000,
    "traffic.canary": {"consent": "Lab", "signatures": SIGNATURES},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Return the coordinator's address, and the id of a complete run."""
    folder = tmp_path_factory.mktemp("canary-units")
    spec = LabSpec(pairs_count=PAIRS, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with built(spec, folder) as lab, staged(lab, folder, device_counter={}) as staged_site:
        apply(lab, "units-4-fail-open")
        url = staged_site.coordinator.url
        body = {"scenario": "smoke", "overrides": SPEC}
        run_id = call(url, "POST", "/v1/runs", json=body)["run_id"]
        wait_for_summary(url, run_id, timeout_s=200)
        yield url, run_id


def test_units_and_leaks_are_in_one_run(site: tuple[str, str]) -> None:
    url, run_id = site
    summary = call(url, "GET", f"/v1/runs/{run_id}/summary")
    (burst,) = summary["bursts"]
    assert summary["verdict"] == "fail"
    assert "canary-leaked" in {finding["id"] for finding in summary["findings"]}
    assert burst["canary"]["pairs_count"] == PAIRS
    assert burst["canary"]["before"]["leaked_count"] == 0
    assert burst["canary"]["during"]["leaked_count"] > 0
    assert len(burst["units"]["units"]) == UNITS


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_and_report_show_both(
    site: tuple[str, str], width: int, theme: str, tmp_path: Path
) -> None:
    url, run_id = site
    report = tmp_path / "report.html"
    report.write_text(httpx.get(f"{url}/v1/runs/{run_id}/report", params={"format": "html"}).text)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        monitored = MonitoredPage.over(browser.new_page(), url)
        body = monitored.page.locator("body")
        monitored.open(f"{url}/#/run/{run_id}")
        for text in ("Canary: blocked, leaked", "Units of the device"):
            expect(body).to_contain_text(text)
        faults = monitored.faults(theme, width, by_axe=False)
        shoot(monitored.page, f"canary-units-{width}-{theme}")
        monitored.open(report.as_uri())
        for text in ("What the device still blocked", "Units of the device"):
            expect(body).to_contain_text(text)
        faults += monitored.file_faults(theme, width)
        shoot(monitored.page, f"canary-units-report-{width}-{theme}")
        browser.close()
    assert faults == []
    assert monitored.errors == []
