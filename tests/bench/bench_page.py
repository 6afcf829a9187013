"""Measure a live update in Chromium with 30 and with 1,000 pairs.

To run it, use ``.venv/bin/python -m tests.bench.bench_page [chromium]``. The limit is 50 ms per
update with 1,000 pairs. The page measures an update as ``live-update``. To update, it parses and
applies the events of a snapshot, and draws all charts. Long tasks take 50 ms or more after the page
has loaded. They include layout and painting of the browser.
"""

import sys
import time

import numpy as np
from playwright.sync_api import sync_playwright

from tests.bench.page_site import RUN_ID, Simulation, simulate, standing
from tests.synthetic import Plant

# Pairs, and the second of the burst.
CASES = ((30, 60), (30, 1740), (1000, 300))
LOOKS = 60
LOOK_S = 0.2
WAIT_S = 40.0

_WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push([entry.startTime, entry.duration]);
}).observe({ type: "longtask" });
"""
_UPDATES = """() => performance.getEntriesByName("live-update")
  .map((entry) => [entry.startTime, entry.duration])"""


def measure(simulation: Simulation, chromium: str) -> str:
    """Measure updates of a run in progress, with all parts of the page shown."""
    with standing(simulation) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(_WATCH)
        page.goto(f"{url}/#/run/{RUN_ID}")
        end_s = time.monotonic() + WAIT_S
        updates = np.empty((0, 2))
        while len(updates) < LOOKS // 2 and time.monotonic() < end_s:
            time.sleep(0.5)
            updates = np.array(page.evaluate(_UPDATES)).reshape(-1, 2)
        long_tasks = page.evaluate("window.longTasks")
        browser.close()
    # The first update draws all earlier data.
    settled_ms = updates[1, 0] if len(updates) > 1 else 0.0
    later = updates[1:, 1]
    tasks = [duration for start, duration in long_tasks if start >= settled_ms]
    pairs = len(simulation.made.plan.pairs)
    p50, p99 = np.percentile(later, [50, 99])
    return (
        f"{pairs:5d} pairs x {simulation.burst_s:4d} s: update p50 {p50:5.1f} ms p99 {p99:5.1f} ms "
        f"max {later.max():5.1f} ms of {len(later)}, first {updates[0, 1]:6.1f} ms; "
        f"long tasks {len(tasks)}" + (f" (longest {max(tasks):.0f} ms)" if tasks else "")
    )


def main() -> None:
    chromium = sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium"
    for pairs, burst_s in CASES:
        plant = Plant(
            pairs=pairs,
            bursts=1,
            burst_s=burst_s,
            period_s=burst_s + 60,
            pair_bits_per_second=240e9 / pairs,
            killed=1,
            late=1,
            null=1,
            missing=1,
        )
        begin_s = max(1, burst_s - LOOKS)
        simulation = simulate(plant, snapshot_s=LOOK_S, begin_s=begin_s, stop_s=burst_s)
        print(measure(simulation, chromium), flush=True)


if __name__ == "__main__":
    main()
