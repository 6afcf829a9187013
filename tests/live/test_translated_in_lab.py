"""Test runs through a firewall with address and port translation, other traffic and loss.

To match the ends of a pair, the content of the test is used: the engine's cookie or the job's
token. Source addresses and other connections should have no influence.
"""

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from broadside.exchange.messages import Presence
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import inside, run
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec
from tests.live.labs import new_prefix
from tests.live.live_site import call, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.quiet, pytest.mark.needs_root, pytest.mark.timeout(200)]

PORTS = {"http": 8080, "https": 8443, "ftp": 2121}
CIPHER = "TLS_CHACHA20_POLY1305_SHA256"
SERVICES = PORTS | {f"https:1.3:{CIPHER}": 8444}
AGENT = {
    "BROADSIDE_AGENT_SERVICES": " ".join(f"{name}={port}" for name, port in SERVICES.items()),
    "BROADSIDE_AGENT_HEARTBEAT_S": "1",
}
LEAD_S = 8
SPEC: dict[str, object] = {
    "pairs_count": 2,
    "bursts_count": 1,
    "burst_s": 5,
    "period_s": 60,
    "lead_s": LEAD_S,
    # Allow for delays, because other tests will be using the CPU cores.
    "late_after_s": 5,
    "traffic.probe": "udp",
    "objective.start_spread_max_s": 5,
    "objective.probe_loss_max_ratio": 0.5,
}
IPERF3: dict[str, object] = {
    "traffic.streams_count": 4,
    "traffic.stream_bits_per_second": 5_000_000,
}
HTTP: dict[str, object] = {
    "traffic.options.requests_per_second": 20,
    "traffic.options.body_bytes": 100_000,
}
FTP: dict[str, object] = {
    "traffic.streams_count": 1,
    "traffic.stream_bits_per_second": 16_000_000,
    "traffic.options.file_bytes": 5_000_000,
}
UP: dict[str, object] = {"traffic.direction": "forward"}
# No resolver knows the name.
CHOSEN: dict[str, object] = {
    "traffic.engine": "https",
    "traffic.options.tls": "1.3",
    "traffic.options.tls_cipher": CIPHER,
    "traffic.options.server_name": "shop.lab.test",
}
RUNS: dict[str, dict[str, object]] = {
    "tcp": IPERF3,
    "reverse": IPERF3 | {"traffic.direction": "reverse"},
    "both ways": IPERF3 | {"traffic.direction": "bidirectional"},
    "udp": IPERF3 | {"traffic.protocol": "udp", "traffic.block_bytes": 1400},
    "http": HTTP | {"traffic.engine": "http"},
    "https": HTTP | {"traffic.engine": "https"},
    # This downloads two files in sequence.
    "ftp": FTP | {"traffic.engine": "ftp", "burst_s": 8},
    "http upload": HTTP | UP | {"traffic.engine": "http"},
    "https upload": HTTP | UP | CHOSEN,
    "ftp upload": FTP | UP | {"traffic.engine": "ftp", "traffic.streams_count": 2, "burst_s": 8},
}
TRANSLATIONS = {
    "masquerade": "masquerade fully-random",
    # All clients share the address of the first, with any port.
    "one client's address": "meta l4proto { tcp, udp } snat to 10.1.1.1:1024-65535 fully-random",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Lab with its agents and a coordinator."""

    lab: Lab
    url: str

    def carry_out(self, **overrides: object) -> dict[str, Any]:
        body = {"scenario": "smoke", "overrides": SPEC | overrides}
        run_id = call(self.url, "POST", "/v1/runs", json=body)["run_id"]
        return wait_for_summary(self.url, run_id)

    def are_free(self) -> bool:
        """Return whether all services of all servers are free."""
        presences = [Presence.model_validate(p) for p in call(self.url, "GET", "/v1/agents")]
        states = [p.engine(name) for p in presences for name in PORTS]
        return sum(bool(state and state.ports) for state in states) == 2 * len(PORTS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    folder = tmp_path_factory.mktemp("translated")
    spec = LabSpec(pairs_count=2, prefix=new_prefix(), firewall_bits_per_second=400_000_000)
    with (
        built(spec, folder) as lab,
        staged(lab, folder, device_counter={}, agents=AGENT) as staged_site,
    ):
        standing = Range(lab=lab, url=staged_site.coordinator.url)
        wait_for("free services", standing.are_free)
        yield standing


@contextlib.contextmanager
def firewall_rules(lab: Lab, table: str) -> Iterator[None]:
    """Install an nftables table in the firewall until the context ends."""
    nft = [find_tool("nft"), "-f", "-"]
    run(nft, namespace=lab.firewall_namespace, text=f"table ip planted {{\n{table}\n}}\n")
    try:
        yield
    finally:
        run(nft, namespace=lab.firewall_namespace, text="delete table ip planted")


def translating(how: str) -> str:
    """Return table rules to translate the source of packets to the servers."""
    return f"""counter began {{ }}
chain out {{
 type nat hook postrouting priority srcnat
 oifname "s0" counter name began {how}
}}"""


def translated_count(lab: Lab) -> int:
    """Return the number of connections with a translated source."""
    argv = [find_tool("nft"), "-j", "list", "counter", "ip", "planted", "began"]
    items = json.loads(run(argv, namespace=lab.firewall_namespace))["nftables"]
    return sum(item["counter"]["packets"] for item in items if "counter" in item)


def assert_complete(summary: Mapping[str, Any]) -> None:
    """Verify that all pairs were measured at both ends by cookie, and that the run passes."""
    (burst,) = summary["bursts"]
    assert burst["pairs"], summary
    lines = [finding["sentence"] for finding in summary["findings"]]
    for pair in burst["pairs"]:
        assert (pair["state"], pair["joined_by"]) == ("measured", "cookie"), (pair["reason"], lines)
    assert burst["foreign_tests"] == []
    assert burst["contradictions"] == []
    for flow in burst["flows"]:
        # Part of a transfer may be cut off at the ends of a window if it is recorded only as a
        # total.
        assert 0 < flow["received_bits_per_second"] <= 1.1 * flow["sent_bits_per_second"]
    # Other tests on these cores may leave a pair without enough probes, or slow it down.
    problems = {item["id"] for item in summary["findings"] if item["severity"] == "problem"}
    assert problems <= {"probe-loss-unproven", "collapse"}, lines


@pytest.mark.parametrize("traffic", RUNS)
def test_run_through_address_translation_is_complete(site: Range, traffic: str) -> None:
    with firewall_rules(site.lab, translating(TRANSLATIONS["masquerade"])):
        summary = site.carry_out(**RUNS[traffic])
        assert translated_count(site.lab) > 0
    assert_complete(summary)
    (burst,) = summary["bursts"]
    assert burst["latency"]["fleet"]["during"]["answered_count"] > 60
    assert burst["differences"] == []
    measures = {measure["name"]: measure["value"] for measure in burst["measures"]}
    if "traffic.options.server_name" in RUNS[traffic]:
        count = measures["server_requests_count"]
        assert (
            measures["server_named_count"] == measures[f"tlsv1_3_{CIPHER.lower()}_count"] == count
        )
    if traffic.endswith("upload"):
        (flow,) = burst["flows"]
        assert flow["flow"] == "up"
        assert flow["received_bits_per_second"] > 0.9 * flow["sent_bits_per_second"]


@pytest.mark.parametrize("traffic", ["tcp", "udp", "http", "ftp"])
def test_distinguishes_clients_with_the_same_address(site: Range, traffic: str) -> None:
    with firewall_rules(site.lab, translating(TRANSLATIONS["one client's address"])):
        assert_complete(site.carry_out(**RUNS[traffic]))


# Foreign hosts ---------------------------------------------------------------------------------


class ForeignHost:
    """Foreign host that uses the services of all servers from the firewall's namespace."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()

    def get(self, server: str, *arguments: str) -> int:
        """Use curl to send a request, and return its exit code."""
        argv = ["curl", "--silent", "--insecure", "--max-time", "5", "-o", "/dev/null"]
        argv = ["ip", "netns", "exec", str(self._lab.firewall_namespace), *argv]
        urls = [part.replace("SERVER", server) for part in arguments]
        return subprocess.run([*argv, *urls], check=False, timeout=30).returncode

    def use_services(self) -> None:
        """Download from all services of all servers, and send requests like those of a test."""
        for host in self._lab.servers:
            got = [
                self.get(host.address, "http://SERVER:8080/1000000"),
                self.get(host.address, "https://SERVER:8443/1000000"),
                self.get(host.address, "ftp://SERVER:2121/1000000"),
            ]
            assert got == [0, 0, 0]
            for job in ("x", "other-run.0.0.9", "a%20b%0a", "'\"%5c"):
                self.get(host.address, f"http://SERVER:8080/1000000?job={job}")
            self.get(host.address, "--user", "anonymous:somebody@", "ftp://SERVER:2121/1000000")

    def check_health(self) -> None:
        """Connect to all services and disconnect, as a load balancer would.

        A single connection lasts longer.
        """
        with inside(self._lab.firewall_namespace):
            for host in self._lab.servers:
                for port in PORTS.values():
                    socket.create_connection((host.address, port), 5).close()
                stored = socket.create_connection((host.address, PORTS["http"]), 5)
                self._over.wait(1)
                stored.close()

    def __enter__(self) -> "ForeignHost":
        self._thread = threading.Thread(target=self._use)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _use(self) -> None:
        while not self._over.is_set():
            self.check_health()
            self.use_services()


@pytest.mark.parametrize("traffic", ["http", "https", "ftp"])
def test_foreign_request_before_the_burst_has_no_effect(site: Range, traffic: str) -> None:
    """Send requests about 1.5 s before the burst, so that there is no pause."""
    before = threading.Timer(LEAD_S - 1.5, ForeignHost(site.lab).use_services)
    before.start()
    try:
        assert_complete(site.carry_out(**RUNS[traffic]))
    finally:
        before.join()


@pytest.mark.parametrize("traffic", ["http", "https", "ftp"])
def test_foreign_requests_during_the_burst_have_no_effect(site: Range, traffic: str) -> None:
    with ForeignHost(site.lab):
        assert_complete(site.carry_out(**RUNS[traffic]))


@pytest.mark.parametrize("traffic", ["http", "https"])
def test_connections_without_keep_alive_belong_to_one_test(site: Range, traffic: str) -> None:
    assert_complete(site.carry_out(**RUNS[traffic], **{"traffic.options.keepalive": False}))


@pytest.mark.parametrize("traffic", ["http", "https", "ftp"])
def test_packet_loss_does_not_split_a_test(site: Range, traffic: str) -> None:
    lossy = """chain forward {
 type filter hook forward priority 0
 numgen random mod 100 < 3 drop
}"""
    with firewall_rules(site.lab, lossy):
        summary = site.carry_out(**(RUNS[traffic] | {"burst_s": 15}))
    (burst,) = summary["bursts"]
    for pair in burst["pairs"]:
        assert (pair["state"], pair["joined_by"]) == ("measured", "cookie"), pair
    assert (burst["foreign_tests"], burst["contradictions"]) == ([], [])
    (flow,) = burst["flows"]
    assert 0 < flow["received_bits_per_second"] <= 1.1 * flow["sent_bits_per_second"]
