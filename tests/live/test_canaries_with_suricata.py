"""Test canaries through Suricata as an inline device, with rules that have the ids of ET Open."""

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadside.lab.namespaces import inside
from broadside.lab.site import built, staged
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.test_canaries_in_lab import CANARY, IDLE
from tests.live.waiting import wait_for

SURICATA = shutil.which("suricata")
# nftables needs NFT_QUEUE for a queue, which not every kernel has.
IPTABLES = shutil.which("iptables-legacy")

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not SURICATA or not IPTABLES, reason="suricata (bookworm-backports) is not installed"
    ),
]

BLOCKED = ("et-id-check", "et-id-check-udp", "snort-id-check", "azure-idps")
RULES = """
drop ip any any -> any any (msg:"id check returned root"; content:"uid=0|28|root|29|"; sid:2100498;)
drop http any any -> any any (msg:"HaxerMen"; http.user_agent; content:"HaxerMen"; sid:2032081;)
"""
CONFIG = """%YAML 1.1
---
vars: {address-groups: {HOME_NET: "any", EXTERNAL_NET: "any"}, port-groups: {HTTP_PORTS: "any"}}
outputs: [{fast: {enabled: yes, filename: fast.log}}]
app-layer: {protocols: {http: {enabled: yes}}}
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "own.rules").write_text(RULES)
    (tmp_path / "suricata.yaml").write_text(CONFIG)
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with built(spec, tmp_path) as lab, staged(lab, tmp_path, device_counter={}) as staged_site:
        with inside(lab.firewall_namespace):
            for protocol, port in itertools.product(("tcp", "udp"), ("--sport", "--dport")):
                rule = [
                    "FORWARD",
                    "-p",
                    protocol,
                    port,
                    "5198",
                    "-j",
                    "NFQUEUE",
                    "--queue-num",
                    "0",
                ]
                subprocess.run([str(IPTABLES), "-A", *rule], check=True)
            files = ["-c", "suricata.yaml", "-S", "own.rules", "-l", "."]
            argv = [str(SURICATA), *files, "-q", "0", "-k", "none"]
            out = (tmp_path / "out").open("w")
            inspector = subprocess.Popen(argv, cwd=tmp_path, stdout=out, stderr=out)
        try:
            wait_for("Suricata", lambda: "Engine started" in (tmp_path / "out").read_text())
            yield staged_site.coordinator.url
        finally:
            inspector.kill()
            inspector.wait()
            out.close()


def test_suricata_blocks_the_signatures_of_the_catalogue(site: str) -> None:
    canary = {**CANARY, "signatures": [*BLOCKED, "et-user-agent"]}
    spec: dict[str, Any] = {**IDLE, "traffic.canary": canary, "burst_s": 12}
    body = {"scenario": "smoke", "overrides": spec}
    run_id = call(site, "POST", "/v1/runs", json=body)["run_id"]
    summary = wait_for_summary(site, run_id, timeout_s=120)
    result = summary["bursts"][0]["canary"]
    shares = {one["name"]: one["during"]["leak_ratio"] for one in result["signatures"]}
    # There is no rule for the last one.
    assert shares == {**dict.fromkeys(BLOCKED, 0), "et-user-agent": 1}
    assert result["during"]["allowed_blocked_count"] == 0
    assert summary["verdict"] == "fail"
