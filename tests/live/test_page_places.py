"""Test that the page can show the delivery state of notification receivers."""

import asyncio
import contextlib
import re
import shutil
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx
import pytest
import uvicorn
from playwright.sync_api import expect, sync_playwright

from broadside.coordinator.api.app import Extensions, create_app
from broadside.coordinator.bounded_listener import Listener
from broadside.coordinator.notices.announcer import NotDelivered, Notice, Receiver
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.live.browser_pages import MonitoredPage
from tests.unit.coordinator.notices.test_announcer import ended_run

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="make tools")


class _Accepts:
    name = "otlp"

    async def deliver(self, notice: Notice) -> None:
        """Accept every notice."""


class _Rejects:
    name = "webhook"

    async def deliver(self, notice: Notice) -> None:
        raise NotDelivered("it answered <b>503</b>")


@contextlib.contextmanager
def served(folder: Path, places: list[Receiver]) -> Iterator[tuple[str, datetime]]:
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    _, now = asyncio.run(ended_run(fabric))
    with Listener("127.0.0.1", 0) as listener:
        app = create_app(
            Coordinator(fabric, now=lambda: now), tick_s=0.1, extensions=Extensions(places=places)
        )
        config = uvicorn.Config(app, http=listener.protocol, ws="none", log_config=None)
        server = uvicorn.Server(config)
        work = server.serve(sockets=[listener])
        serving = threading.Thread(target=asyncio.run, args=(work,), daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", now
        finally:
            server.should_exit = True
            serving.join(30)


def test_page_shows_queue_and_last_error_of_receivers(tmp_path: Path) -> None:
    with served(tmp_path, [_Rejects(), _Accepts()]) as (url, now), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 500})
        monitored = MonitoredPage.over(page, url)
        try:
            monitored.open(f"{url}/#/agents")
            rows = page.get_by_role("region", name="Places").locator("tbody tr")
            expect(rows).to_have_count(2, timeout=60_000)
            expect(rows.nth(0)).to_contain_text(
                re.compile(r"webhook.*failing.*1 run.*it answered <b>503</b>.*ago"), timeout=60_000
            )
            expect(rows.nth(1)).to_contain_text(re.compile(r"otlp.*idle.*0 runs.*ago.*none.*never"))
            page.set_viewport_size({"width": 390, "height": 700})
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390
        finally:
            monitored.print_state()
            browser.close()
        answer = httpx.get(f"{url}/v1/notices").json()
        figures = httpx.get(f"{url}/metrics").text
    assert [item["state"] for item in answer] == ["failing", "idle"]
    assert datetime.fromisoformat(answer[0]["last_error_at"]) == now
    stamp = re.search(r'error_timestamp_seconds\{place="webhook"\} (\S+)', figures)
    assert stamp is not None
    assert float(stamp[1]) == now.timestamp()
