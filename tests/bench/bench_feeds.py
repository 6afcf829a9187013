"""Compare the residuals that a live page showed with the final residual of the run.

To run it, use ``python -m tests.bench.bench_feeds [N]`` as root. It will run N demos (default 20)
of different sizes and lengths. A client is killed in a fifth of them. The event stream is read like
the page reads it. If the interval of a shown residual does not contain the final value, it is
printed and the exit code is 1.
"""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from typing import Final

from broadside.coordinator.cli.api_client import connect
from broadside.coordinator.core.live.live_view import LiveMetrics

DEMOS_COUNT: Final = 20
PAIRS: Final = (2, 4, 8, 12)
SECONDS: Final = (8, 12, 20, 30, 40)
BURSTS: Final = (1, 2)
_PAGE: Final = re.compile(r"the live page: (\S+)/")
_LAUNCHED: Final = re.compile(r"launched (\S+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """One residual as the page showed it.

    Attributes:
        at_s: Seconds of the burst that the residual is based on.
    """

    at_s: int
    low: float
    value: float
    high: float


async def feed_of(options: list[str]) -> tuple[dict[int, list[Shown]], dict[int, float | None]]:
    """Return the residuals shown for each burst of one demo, and the residuals in the verdict."""
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "broadside.coordinator", "demo", "-o", "json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert demo.stdout is not None and demo.stderr is not None
    url, reported = "", demo.stdout
    reading = asyncio.create_task(reported.read())
    following: asyncio.Task[dict[int, list[Shown]]] | None = None
    async for line in demo.stderr:
        if match := _PAGE.search(line.decode()):
            url = match[1]
        if (match := _LAUNCHED.search(line.decode())) and following is None:
            following = asyncio.create_task(_follow(url, match[1]))
    summary = json.loads(await reading)
    await demo.wait()
    assert following is not None
    stored = {b["burst"] - 1: b["reconciliation"]["residual_ratio"] for b in summary["bursts"]}
    return await following, stored


async def _follow(url: str, run_id: str) -> dict[int, list[Shown]]:
    shown: dict[int, list[Shown]] = {}
    async with connect(url) as client:
        async for event in client.events(run_id):
            if event.name != "figures":
                continue
            figures = LiveMetrics.parse_answer(event.data)
            reconciliation = figures.summary.reconciliation
            if reconciliation is None or reconciliation.residual_ratio is None:
                continue
            low, high = reconciliation.residual_ends
            seen = Shown(figures.known_s, low, reconciliation.residual_ratio, high)
            shown.setdefault(figures.burst_index, []).append(seen)
    return shown


def main() -> int:
    """Print the worst residual of all demos, and return 1 if an interval excluded the final one."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else DEMOS_COUNT
    shown_count = missed_count = 0
    for number in range(count):
        pairs, seconds = PAIRS[number % len(PAIRS)], SECONDS[number % len(SECONDS)]
        options = ["--pairs", str(pairs), "--seconds", str(seconds)]
        options += ["--bursts", str(BURSTS[number % len(BURSTS)])]
        options += ["--kill-one"] if number % 5 == 4 else []
        shown, final = asyncio.run(feed_of(options))
        off = [
            (index, seen, last)
            for index, last in final.items()
            for seen in shown.get(index, [])
            if last is None or not seen.low <= last <= seen.high
        ]
        of_demo = sum(map(len, shown.values()))
        shown_count, missed_count = shown_count + of_demo, missed_count + len(off)
        print(f"{number + 1}: {' '.join(options)}: {of_demo} shown, {len(off)} off", flush=True)
        for index, seen, last in off:
            print(f"  burst {index + 1}, {seen}: then {last}", flush=True)
    print(f"{shown_count} residuals shown in {count} demos, {missed_count} off")
    return int(missed_count > 0 or shown_count == 0)


if __name__ == "__main__":
    sys.exit(main())
