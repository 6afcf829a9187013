"""Test that the real lab starts, repairs itself, counts traffic and stops without leftovers."""

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import quantiles

import pytest

from broadside.agent.clock import parse_tracking
from broadside.exchange.messages import ClockReading
from broadside.lab import clocks, network, topology
from broadside.lab.byte_counter import ByteCounterReading, read_counter
from broadside.lab.errors import LabBroken, ToolMissing
from broadside.lab.namespaces import (
    NAMESPACES_PATH,
    inside,
    list_namespaces,
    list_owned,
    list_processes,
    run,
)
from broadside.lab.site import built
from broadside.lab.topology import Lab, LabHost, LabSpec
from tests.live.labs import new_prefix, send
from tests.live.taken import Taken
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root]


# The timestamp of a reading may be this much too late if the host is busy.
COUNTER_ERROR_S = 0.3


def traces(prefix: str, base_path: Path) -> list[str]:
    """Return all objects on this machine that contain the name of a lab."""
    results = [f"namespace {name}" for name in list_namespaces(prefix)]
    results += [f"process {process}" for process in list_owned(prefix)]
    results += [f"link {name}" for _, name in socket.if_nameindex() if name.startswith(prefix)]
    results += [
        f"mount {line}"
        for line in Path("/proc/mounts").read_text().splitlines()
        if f"/{prefix}" in line
    ]
    results += [str(path) for path in Path("/run").glob(f"*/*{prefix}*")]
    results += [str(path) for path in base_path.rglob("*")]
    return results


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab to be used for several read-only tests."""
    spec = LabSpec(pairs_count=2, prefix=new_prefix())
    with built(spec, tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def readings(lab: Lab, from_s: float = 0.0) -> tuple[ByteCounterReading, ...]:
    assert lab.counter_path is not None
    return read_counter(lab.counter_path, from_s, float("inf"))


def next_reading(lab: Lab) -> ByteCounterReading:
    """Wait for the first reading after now.

    This can take a second.
    """
    from_s = time.time() + COUNTER_ERROR_S
    wait_for("a reading of the byte counter", lambda: readings(lab, from_s), 30)
    return readings(lab, from_s)[0]


# Start and stop -----------------------------------------------------------------------------------


def test_down_removes_everything_and_can_be_repeated(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=3, prefix=new_prefix())
    before = traces(spec.prefix, tmp_path)
    with built(spec, tmp_path) as lab:
        assert network.status(spec.prefix, tmp_path).faults == ()
        send(lab.clients[2], lab.servers[2], 10_000)
        report = network.down(spec.prefix, tmp_path)
        assert report.namespaces_count == len(topology.namespaces(spec))
        assert report.left == ()
        assert traces(spec.prefix, tmp_path) == before == []
        again = network.down(spec.prefix, tmp_path)
        assert (again.processes_count, again.namespaces_count, again.left) == (0, 0, ())


def parts(prefix: str) -> tuple[object, set[int]]:
    """Return the namespaces and long-running processes of a lab.

    The byte counter's short nftables processes are excluded.
    """
    first = {process.pid for process in list_owned(prefix)}
    time.sleep(0.5)
    return list_namespaces(prefix), first & {process.pid for process in list_owned(prefix)}


def test_up_keeps_a_complete_lab(lab: Lab) -> None:
    before = parts(lab.spec.prefix)
    assert network.up(lab.spec, lab.path.parents[1]) == lab
    assert parts(lab.spec.prefix) == before


def test_up_repairs_a_damaged_network(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=2, prefix=new_prefix())
    with built(spec, tmp_path) as lab:
        for damage in (
            "ip netns delete {p}s001",
            "ip netns delete {p}fw",
            "ip -n {p}c002 link delete eth0",
            "ip -n {p}c001 route delete default",
            "ip link delete {p}mg",
            "ip netns exec {p}fw nft delete table ip broadside",
            "rm {base}/lab/{p}/spec.json",
            "ip netns delete {p}c001; touch /run/netns/{p}c001",
            "ip netns add {p}c009",
        ):
            subprocess.run(["sh", "-ec", damage.format(p=spec.prefix, base=tmp_path)], check=True)
            assert network.status(spec.prefix, tmp_path).faults != (), damage
            assert network.up(spec, tmp_path) == lab, damage
            assert network.status(spec.prefix, tmp_path).faults == (), damage
            send(lab.clients[0], lab.servers[0], 10_000)
    assert traces(spec.prefix, tmp_path) == []


def test_up_restarts_killed_processes_and_keeps_the_network(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=1, prefix=new_prefix())
    with built(spec, tmp_path) as lab:
        before = list_namespaces(spec.prefix)
        for process in list_owned(spec.prefix):
            os.kill(process.pid, signal.SIGKILL)
        wait_for("the end of the lab's processes", lambda: not list_owned(spec.prefix))
        faults = network.status(spec.prefix, tmp_path).faults
        assert any("counter" in fault for fault in faults)
        assert any("chronyd" in fault for fault in faults)
        network.up(spec, tmp_path)
        assert network.status(spec.prefix, tmp_path).faults == ()
        assert list_namespaces(spec.prefix) == before
        next_reading(lab)


def test_up_with_another_spec_rebuilds_the_lab(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=3, prefix=new_prefix())
    with built(spec, tmp_path):
        smaller = network.up(LabSpec(pairs_count=1, prefix=spec.prefix), tmp_path)
        assert list_namespaces(spec.prefix).keys() == set(topology.namespaces(smaller.spec))


@pytest.mark.parametrize(
    ("delay_s", "then"), [(0.0, "up"), (0.1, "down"), (0.2, "up"), (0.3, "down")]
)
def test_up_or_down_after_a_killed_up(delay_s: float, then: str, tmp_path: Path) -> None:
    """Use SIGKILL to end ``up`` after its first namespace, then run ``up`` or ``down``."""
    spec = LabSpec(pairs_count=8, prefix=new_prefix())
    code = (
        "from pathlib import Path; from broadside.lab import network; "
        "from broadside.lab.topology import LabSpec; "
        f"network.up(LabSpec(pairs_count=8, prefix={spec.prefix!r}), Path({str(tmp_path)!r}))"
    )
    builder = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for("the first namespace", lambda: list_namespaces(spec.prefix))
        time.sleep(delay_s)
    finally:
        builder.kill()
        builder.wait()
    try:
        if then == "up":
            lab = network.up(spec, tmp_path)
            assert network.status(spec.prefix, tmp_path).faults == ()
            send(lab.clients[7], lab.servers[7], 10_000)
    finally:
        report = network.down(spec.prefix, tmp_path)
    assert report.left == ()
    assert traces(spec.prefix, tmp_path) == []


def test_down_works_without_state_folder(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=1, prefix=new_prefix())
    with built(spec, tmp_path):
        assert network.down(spec.prefix, tmp_path / "elsewhere").left == ()
        assert list_namespaces(spec.prefix) == {}
        assert list_owned(spec.prefix) == []


def test_down_kills_processes_of_deleted_namespaces(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=1, prefix=new_prefix())
    with built(spec, tmp_path):
        sleeper = subprocess.Popen(["ip", "netns", "exec", f"{spec.prefix}c001", "sleep", "100"])
        wait_for("sleep", lambda: any("sleep 100" in p.command for p in list_owned(spec.prefix)))
        subprocess.run(["ip", "netns", "delete", f"{spec.prefix}c001"], check=True)
        assert network.down(spec.prefix, tmp_path).left == ()
        assert sleeper.wait(5) == -signal.SIGKILL


def test_lock_allows_one_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = new_prefix()
    monkeypatch.setattr(network, "LOCK_TIMEOUT_S", 0.1)
    with (
        network.locked(prefix),
        pytest.raises(LabBroken, match="another lab up or down"),
        network.locked(prefix),
    ):
        pass
    with network.locked(prefix):
        pass


def test_missing_tool_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ip", "tc"):
        (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("broadside.exchange.programs.SYSTEM_FOLDERS", "")
    with pytest.raises(ToolMissing, match=r"nft .*apt-get install nftables"):
        network.up(LabSpec(pairs_count=1, prefix=new_prefix()), tmp_path)


def test_lab_without_chronyd_reports_a_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find_all_but_chrony(name: str) -> str:
        if name.startswith("chrony"):
            raise ToolMissing(f"{name} is not installed")
        return f"/usr/sbin/{name}"

    monkeypatch.setattr(clocks, "find_tool", find_all_but_chrony)
    with built(LabSpec(pairs_count=1, prefix=new_prefix()), tmp_path) as lab:
        assert "not installed" in lab.limits[0]
        assert [host.chrony for host in lab.hosts] == [None, None]


def test_lock_lasts_until_the_command_of_a_killed_builder_ends() -> None:
    prefix = new_prefix()
    sleep = ["sleep", str(300_000 + os.getpid())]
    code = (
        "from broadside.lab import network; from broadside.lab.namespaces import run\n"
        f"with network.locked({prefix!r}) as lock: run({sleep!r}, lock=lock)"
    )

    def sleepers() -> list[int]:
        return [p.pid for p in list_processes() if p.command.split() == sleep]

    with subprocess.Popen([sys.executable, "-c", code]) as builder:
        try:
            wait_for("the builder's command", sleepers)
        finally:
            builder.kill()
    try:
        with socket.socket(socket.AF_UNIX) as lock, pytest.raises(OSError, match="in use"):
            lock.bind(f"\0broadside-lab-{prefix}")
    finally:
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)
    with network.locked(prefix):
        pass


# Traffic and counters
# ------------------------------------------------------------------------------


def test_counter_counts_payload_and_headers(lab: Lab) -> None:
    payload_bytes = 4_000_000
    before = next_reading(lab)
    send(lab.clients[0], lab.servers[1], payload_bytes)
    after = next_reading(lab)
    delivered_bytes = after.up_bytes - before.up_bytes
    # A packet has 20 bytes of IP and 32 bytes of TCP headers. A few segments may be retransmitted.
    headers_bytes = 52 * (after.up_packets_count - before.up_packets_count)
    assert payload_bytes <= delivered_bytes - headers_bytes < payload_bytes * 1.005
    assert headers_bytes / payload_bytes == pytest.approx(52 / 1448, rel=0.1)
    assert after.offered_up_bytes is not None
    assert before.offered_up_bytes is not None
    # The offered bytes exclude the headers of segments that were still one super-frame.
    offered_bytes = after.offered_up_bytes - before.offered_up_bytes
    assert payload_bytes < offered_bytes <= delivered_bytes * 1.001
    acknowledged_bytes = after.down_bytes - before.down_bytes
    assert 0 < acknowledged_bytes < payload_bytes / 10


def test_reverse_traffic_is_counted_as_down(lab: Lab) -> None:
    before = next_reading(lab)
    send(lab.servers[0], lab.clients[0], 1_000_000)
    after = next_reading(lab)
    assert after.down_bytes - before.down_bytes > 1_035_900
    assert after.up_bytes - before.up_bytes < 100_000


def test_restarted_counter_continues_its_counters(lab: Lab) -> None:
    assert lab.counter_path is not None
    send(lab.clients[0], lab.servers[0], 100_000)
    before = next_reading(lab)
    # A child process of the device counter has the same command line until its exec.
    writer = min(
        p.pid for p in list_owned(lab.spec.prefix) if "broadside.lab.byte_counter" in p.command
    )
    os.kill(writer, signal.SIGKILL)
    wait_for("the end of the byte counter's process", lambda: not network.is_counter_running(lab))
    with lab.counter_path.open("a") as file:
        # Use an incomplete line to simulate a kill during a write.
        file.write("17999")
    network.start_counter(lab)
    after = next_reading(lab)
    assert after.up_bytes >= before.up_bytes
    assert lab.counter_path.read_text().count("at_s") == 1
    assert [r.at_s for r in readings(lab)] == sorted(r.at_s for r in readings(lab))


def delivered_bits_per_second(lab: Lab) -> float:
    """Return the rate that the device counter shows for a send of 20 MB, in bit/s.

    The first second may contain the initial burst of the token bucket. Spans of less than 2.5 s are
    excluded, because a busy machine may use wrong times for some readings. Delays can only reduce
    the rate of a span, so the result is the 90th percentile.
    """
    start_s = time.time()
    send(lab.clients[0], lab.servers[0], 20_000_000)
    end_s = time.time()
    rates = [
        8 * (later.up_bytes - earlier.up_bytes) / (later.at_s - earlier.at_s)
        for earlier, later in combinations(readings(lab, start_s)[1:], 2)
        if later.at_s - earlier.at_s > 2.5 and later.at_s < end_s
    ]
    return quantiles(rates, n=10)[-1]


def test_firewall_rate_applies_to_the_ip_layer(lab: Lab) -> None:
    # If the limit were at the frame layer, the rate at the IP layer would be 0.9 % less.
    expected = pytest.approx(20_000_000, rel=0.005)
    try:
        network.set_firewall_rate(lab, 20_000_000)
        with Taken() as taken:
            stored = any(delivered_bits_per_second(lab) == expected for _ in range(6))
        assert stored or taken.much
    finally:
        network.shape(lab.spec)


def test_nic_rate_affects_one_host(lab: Lab) -> None:
    def shaper_of(host: LabHost) -> str:
        return run(["tc", "qdisc", "show", "dev", "eth0"], namespace=host.namespace)

    try:
        network.set_nic_rate(lab, [lab.clients[1]], 1_500_000)
        assert "rate 1514Kbit" in shaper_of(lab.clients[1])
        assert "rate 100933Kbit" in shaper_of(lab.clients[0])
    finally:
        network.shape(lab.spec)
    assert "rate 100933Kbit" in shaper_of(lab.clients[1])


def test_counter_counts_without_firewall_rate(lab: Lab) -> None:
    try:
        network.set_firewall_rate(lab, None)
        # Another kind of shaper starts to count from zero.
        before = next_reading(lab)
        send(lab.clients[0], lab.servers[0], 1_000_000)
        assert next_reading(lab).up_bytes - before.up_bytes > 1_035_900
    finally:
        network.shape(lab.spec)


def test_agents_reach_a_broker_on_the_host(lab: Lab) -> None:
    assert lab.management_address is not None
    with socket.create_server((lab.management_address, 0)) as broker:
        broker.settimeout(5)
        for host in lab.hosts:
            with inside(host.namespace):
                call = socket.create_connection(broker.getsockname(), 5)
            answer, (address, _) = broker.accept()
            assert address == host.management_address
            call.close()
            answer.close()


def test_firewall_does_not_forward_to_management_network(lab: Lab) -> None:
    """Test that data networks cannot use the firewall to reach management networks."""
    with inside(lab.firewall_namespace), socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104 - inside the namespace
        port = listener.getsockname()[1]
        with inside(lab.clients[0].namespace), socket.socket() as direct:
            direct.settimeout(5)
            # The firewall answers on this subnet.
            direct.connect(("10.1.0.1", port))
    client, server = lab.clients[0], lab.servers[0]
    assert server.management_address is not None
    ip = ["ip", "route", "replace", f"{server.management_address}/32", "via", "10.1.0.1"]
    run(ip, namespace=client.namespace)
    try:
        with inside(server.namespace):
            listener = socket.create_server((server.management_address, 0))
        with listener, inside(client.namespace), socket.socket() as roundabout:
            roundabout.settimeout(0.5)
            with pytest.raises(OSError, match=r"timed out|unreachable"):
                roundabout.connect(listener.getsockname())
    finally:
        run(["ip", "route", "delete", ip[3]], namespace=client.namespace)


def test_two_labs_run_independently(lab: Lab, tmp_path: Path) -> None:
    with built(LabSpec(pairs_count=1, prefix=new_prefix()), tmp_path) as other:
        before = next_reading(other)
        send(lab.clients[0], lab.servers[0], 1_000_000)
        assert next_reading(other).up_bytes == before.up_bytes
    assert network.status(lab.spec.prefix, lab.path.parents[1]).faults == ()


def test_labs_with_equal_prefix_hash_use_different_networks(lab: Lab, tmp_path: Path) -> None:
    """Test two prefixes that lead to the same hash for the management network."""
    taken = lab.spec.management_slot
    assert taken is not None
    equal = next(
        prefix
        for prefix in (f"u{number:06d}" for number in range(100_000))
        if topology.first_slot(prefix) == taken
    )
    with built(LabSpec(pairs_count=1, prefix=equal), tmp_path) as other:
        assert other.management_address != lab.management_address
        for item in (lab, other):
            test_agents_reach_a_broker_on_the_host(item)
        repaired = network.up(LabSpec(pairs_count=1, prefix=equal), tmp_path)
        assert repaired.management_address == other.management_address
    test_agents_reach_a_broker_on_the_host(lab)


def test_concurrent_labs_get_different_management_networks(lab: Lab) -> None:
    with network.free_slot(lab.spec.prefix) as one, network.free_slot(lab.spec.prefix) as other:
        assert len({lab.spec.management_slot, one, other}) == 3


# Time service -------------------------------------------------------------------------------------


def read_clock(host: LabHost) -> ClockReading:
    text = run(["chronyc", "-c", "-h", str(host.chrony), "tracking"], namespace=host.namespace)
    return parse_tracking(text, datetime.datetime.now(datetime.UTC))


def test_all_hosts_have_synchronised_clocks(lab: Lab) -> None:
    assert clocks.wait_synced(lab, 20) == ()
    for host in lab.hosts:
        reading = read_clock(host)
        assert reading.synchronised
        assert reading.bound_s is not None
        # This is the limit of the agents' clock gate.
        assert reading.bound_s < 0.05


def test_clock_offset_affects_one_host(lab: Lab) -> None:
    assert clocks.wait_synced(lab, 20) == ()
    try:
        clocks.plant_offset(lab, "c002", 0.08)
        assert clocks.wait_synced(lab, 20) == ()
        wrong, right = read_clock(lab.clients[1]), read_clock(lab.clients[0])
        assert wrong.offset_s == pytest.approx(-0.08, abs=0.02)
        assert right.offset_s == pytest.approx(0, abs=0.02)
    finally:
        clocks.plant_offset(lab, "c002", 0)


def test_up_does_not_change_settings_of_the_machine(tmp_path: Path) -> None:
    names = ("net/ipv4/ip_forward", "net/ipv4/tcp_allowed_congestion_control", "net/ipv4/tcp_wmem")
    before = [(Path("/proc/sys") / name).read_text() for name in names]
    with built(LabSpec(pairs_count=1, prefix=new_prefix()), tmp_path):
        assert [(Path("/proc/sys") / name).read_text() for name in names] == before


def test_entering_unknown_namespace_is_an_error() -> None:
    with pytest.raises(LabBroken, match="is the lab up"), inside("nosuch"):
        pass


def test_file_without_mount_is_no_namespace() -> None:
    prefix = new_prefix()
    name = NAMESPACES_PATH / f"{prefix}c001"
    try:
        name.touch()
        assert list_namespaces(prefix) == {name.name: None}
    finally:
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
