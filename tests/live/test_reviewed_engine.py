"""Reproduce findings of an outside review that need iperf3 and a path, then and today.

See ``tests/review`` for the other findings.
"""

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.grid.resample import OverlapResampler
from tests.live.engines import engines
from tests.live.wired_path import Wire, wire
from tests.review.conftest import versions as versions
from tests.review.versions import Version, Versions, build_gate

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

BITS_PER_SECOND = 40_000_000
LENGTH_S, DARK_S, LEAD_S = 7, 4, 4
# The ratio is relative to the rate. See test_seconds_on_the_wire.py for narrower limits.
OFF_RATIO = 0.02
# Drop the first datagram for all streams to the server.
LOSE_FIRST = """
table ip first {
    set seen { type inet_service; flags dynamic; size 65535; }
    chain in {
        type filter hook input priority 0;
        udp sport @seen accept
        meta l4proto udp add @seen { udp sport } drop
    }
}
"""


@pytest.fixture
def path() -> Iterator[Wire]:
    with wire() as made:
        yield made


def fire_arguments(path: Wire, traffic: Mapping[str, object], duration_s: int) -> dict[str, Any]:
    """Return the arguments for the command `fire`."""
    return {
        "binary": str(engines()[max(engines())].binary[0]),
        "client": path.client,
        "server": path.server,
        "address": path.address,
        "traffic": traffic,
        "at_s": float(ceil(time.time() + LEAD_S)),
        "duration_s": duration_s,
    }


def test_m20_lost_first_datagram_does_not_end_the_test(versions: Versions, path: Wire) -> None:
    """Test UDP with 16 streams that lose the first datagram.

    At 6cca7b45 there was no data at all, because iperf3 used a datagram to open a stream and waited
    for a response.
    """
    build_gate(versions)
    subprocess.run([*path.server, "nft", "-f", "-"], input=LOSE_FIRST, text=True, check=True)
    traffic = {
        "protocol": "udp",
        "streams_count": 16,
        "stream_bits_per_second": 160_000,
        "block_bytes": 1000,
    }
    usable = [
        version.ask("fire", fire_arguments(path, traffic, 3))["server"]["usable"]
        for version in (versions.reviewed, versions.today)
    ]
    assert usable == [False, True]


def seconds(version: Version, path: Wire) -> tuple[Any, Any]:
    """Return the bytes per second since the start, as reported and as on the wire."""
    path.limit(BITS_PER_SECOND)
    traffic = {"streams_count": 2, "block_bytes": 4096, "window_bytes": 150_000}
    test = fire_arguments(path, traffic, LENGTH_S)

    def darken() -> None:
        for from_s, dark in ((DARK_S, True), (DARK_S + 1, False)):
            time.sleep(max(0.0, test["at_s"] + from_s - time.time()))
            path.darken(dark)

    with path.meters() as (_, up):
        darkening = threading.Thread(target=darken)
        darkening.start()
        ends = version.ask("fire", test)
        darkening.join()
    since_s = test["at_s"] + np.arange(LENGTH_S + 1.0)
    starts_s, ends_s, moved = np.array(ends["server"]["readings"]["up"]).T
    reported = OverlapResampler(starts_s, ends_s, since_s).over(moved)
    return reported, up.payload(since_s)


def test_m21_seconds_equal_those_on_the_wire(versions: Versions, path: Wire) -> None:
    """Test TCP from client to server with one second without packets.

    At 6cca7b45 the dark second had 12.4 Mbit/s, but 0.8 Mbit/s on the wire. The first second had 31
    of 38 Mbit/s. On a busy core both versions may be late, so the current one has three attempts.
    """
    build_gate(versions)

    def off(version: Version) -> Any:
        reported, crossed = seconds(version, path)
        return (reported - crossed)[[0, DARK_S]] / crossed.max()

    first, dark = off(versions.reviewed)
    assert first < -0.1
    assert dark > 0.15
    today = [abs(off(versions.today)).max()]
    while today[-1] > OFF_RATIO and len(today) < 3:
        today.append(abs(off(versions.today)).max())
    assert today[-1] <= OFF_RATIO, today
