"""Test a firewall that drops one of four sessions.

The pair should continue and the stream be named.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.coordinator.core.summary import RunSummary
from broadside.lab.namespaces import run, run_batch
from broadside.lab.site import built, staged
from broadside.lab.topology import Batch, LabSpec, firewall_namespace
from tests.live.labs import new_prefix
from tests.live.live_site import GENTLE, call, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(300)]

# Only a data stream can have sent so much, not a control connection.
STREAM_BYTES = 100_000


def test_finding_names_pair_port_and_time_of_a_dropped_session(
    tmp_path: Path,
) -> None:
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    fields = {**GENTLE, "pairs_count": 2, "burst_s": 20, "traffic.streams_count": 4}
    with built(spec, tmp_path / "lab") as lab, staged(lab, tmp_path) as site:
        client = lab.clients[1]

        def ports() -> list[int]:
            reported = run(
                ["ss", "--no-header", "-tinO", "state", "established"], namespace=client.namespace
            )
            return [
                int(port)
                for port, sent in re.findall(r":(\d+) +\S+:\d+ .*?bytes_sent:(\d+)", reported)
                if int(sent) > STREAM_BYTES
            ]

        run_id = site.coordinator.launch({"scenario": "smoke", "overrides": fields})["run_id"]
        wait_for("four streams under way", lambda: len(ports()) == 4)
        port = ports()[2]
        dropped_at = datetime.now(UTC)
        rules = [f"add rule inet cut f tcp {side} {port} drop" for side in ("sport", "dport")]
        run_batch(
            Batch(
                namespace=firewall_namespace(spec.prefix),
                tool="nft",
                lines=(
                    "add table inet cut",
                    "add chain inet cut f { type filter hook forward priority -10; }",
                    *rules,
                ),
            )
        )
        wait_for_summary(site.coordinator.url, run_id, 120)
        text = call(site.coordinator.url, "GET", f"/v1/runs/{run_id}/summary")
    summary = RunSummary.parse_answer(text)
    assert (summary.pairs_measured, summary.completeness_ratio) == (2, 1.0)
    [burst] = summary.bursts
    [silent] = burst.silent_streams
    assert (silent.client_port, silent.streams_count) == (port, 4)
    assert silent.pair in {pair.pair for pair in burst.pairs if pair.client_agent_id == client.name}
    assert abs((silent.from_at - dropped_at).total_seconds()) < 2.5
    [finding] = [f for f in summary.findings if f.id == "silent-streams"]
    assert f"port {port} (one of 4) from " in finding.sentence
