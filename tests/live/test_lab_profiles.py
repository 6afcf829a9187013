"""Test that lab profiles have their documented effects and leave nothing behind."""

import socket
import time
from collections.abc import Iterator

import pytest

from broadside.lab import network, profiles
from broadside.lab.byte_counter import read_counter
from broadside.lab.errors import LabMisconfigured
from broadside.lab.namespaces import inside
from broadside.lab.site import built
from broadside.lab.topology import Lab, LabSpec
from tests.live.labs import new_prefix, send
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

NIC_BITS_PER_SECOND = 40_000_000
FIREWALL_BITS_PER_SECOND = 60_000_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    spec = LabSpec(
        pairs_count=2,
        prefix=new_prefix(),
        nic_bits_per_second=NIC_BITS_PER_SECOND,
        firewall_bits_per_second=FIREWALL_BITS_PER_SECOND,
    )
    with built(spec, tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def round_trip_s(lab: Lab) -> float:
    """Return the shortest of ten TCP handshakes from the first client to the first server."""
    client, server = lab.clients[0], lab.servers[0]
    with inside(server.namespace):
        listener = socket.create_server((server.address, 7001), backlog=20)
    taken_s = []
    with listener:
        for _ in range(10):
            begun_s = time.monotonic()
            with inside(client.namespace):
                socket.create_connection((server.address, 7001), 5).close()
            taken_s.append(time.monotonic() - begun_s)
    return min(taken_s)


def sent_bits_per_second(lab: Lab, payload_bytes: int) -> float:
    begun_s = time.monotonic()
    send(lab.clients[0], lab.servers[0], payload_bytes)
    return 8 * payload_bytes / (time.monotonic() - begun_s)


def counted_bytes(lab: Lab) -> int:
    """Return the bytes that the firewall's device counter has counted as delivered so far."""
    assert lab.counter_path is not None
    path, now_s = lab.counter_path, time.time()
    wait_for("a reading of the byte counter", lambda: read_counter(path, now_s, float("inf")), 30)
    return read_counter(path, now_s, float("inf"))[0].up_bytes


def test_path_profile_adds_delay_until_plain(lab: Lab) -> None:
    profiles.apply(lab, "path-20ms")
    assert 0.020 <= round_trip_s(lab) < 0.030
    send(lab.clients[1], lab.servers[1], 1_000_000)
    profiles.apply(lab, "plain")
    assert round_trip_s(lab) < 0.010
    assert network.status(lab.spec.prefix, lab.path.parents[1]).faults == ()


def test_idps_deny_profile_reduces_the_rate(lab: Lab) -> None:
    profiles.apply(lab, "idps-deny")
    rate = sent_bits_per_second(lab, 3_000_000)
    assert rate < 1.1 * FIREWALL_BITS_PER_SECOND * 0.22
    profiles.apply(lab, "plain")
    # One of the transfers may be slow if the host is busy.
    assert any(sent_bits_per_second(lab, 3_000_000) > 1.5 * rate for _ in range(3))


def test_firewall_does_not_count_bypass_traffic(lab: Lab) -> None:
    profiles.apply(lab, "bypass")
    before = counted_bytes(lab)
    send(lab.clients[0], lab.servers[0], 2_000_000)
    assert counted_bytes(lab) - before < 10_000
    profiles.apply(lab, "plain")
    before = counted_bytes(lab)
    send(lab.clients[0], lab.servers[0], 2_000_000)
    assert counted_bytes(lab) - before > 2_000_000


def fallen_ratio(lab: Lab) -> float | None:
    """Return the rate after a cliff during a send, relative to the firewall's rate.

    The result is None if the cliff did not occur.
    """
    profiles.apply(lab, "cliff")
    # With a limit of 40 Mbit/s for the NIC the load would be too low for the cliff.
    network.set_nic_rate(lab, lab.hosts, None)
    begun_s = time.time()
    rate = sent_bits_per_second(lab, 60_000_000)
    fallen_s = [at_s - begun_s for at_s in profiles.falls(lab) if at_s > begun_s]
    assert all(after_s > 3 for after_s in fallen_s)
    return rate / FIREWALL_BITS_PER_SECOND if fallen_s else None


def test_cliff_profile_reduces_rate_under_load(lab: Lab) -> None:
    # If the busy host interrupts the load, the three seconds start again, so the send needs to
    # be repeated.
    ratios = (fallen_ratio(lab) for _ in range(3))
    assert any(ratio is not None and 0.3 < ratio < 0.7 for ratio in ratios)


def test_next_profile_removes_slow_nic(lab: Lab) -> None:
    profiles.apply(lab, "slow-nic")
    assert sent_bits_per_second(lab, 500_000) < 0.2 * NIC_BITS_PER_SECOND
    profiles.apply(lab, "plain")
    assert sent_bits_per_second(lab, 4_000_000) > 0.5 * NIC_BITS_PER_SECOND


def test_unknown_profile_error_lists_the_profiles(lab: Lab) -> None:
    with pytest.raises(LabMisconfigured, match=r"'idps'.*idps-deny"):
        profiles.apply(lab, "idps")
