"""Tests for the payload per second and address of the client, as the server received it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.engines.peer_seconds import STEPS_MAX_COUNT, PeerRates, read_steps
from broadside.exchange.engines.served_log import LogReader, Transfer
from broadside.exchange.engines.tokens import JobToken
from broadside.exchange.messages import PEERS_MAX_COUNT, EngineReport, PeerSeconds

RECORDING = Path(__file__).parents[3] / "data" / "iperf3" / "3.22" / "server-persistent.json"
AT_S = 1_800_000_000.25


def server_record(*hosts: str) -> EngineReport:
    """Return the report of the recorded server test with other client addresses."""
    text = RECORDING.read_text()
    document: Any = json.JSONDecoder().raw_decode(text)[0]
    for one, host in zip(document["start"]["connected"], hosts, strict=True):
        one["remote_host"] = host
    report = read_any(json.dumps(document).encode()).report
    assert EngineReport.model_validate_json(report.to_json()) == report
    return report


def steps(peers: Sequence[PeerSeconds]) -> dict[str, list[tuple[int, int]]]:
    return {peer.address: list(zip(*(read_steps(peer) or ()), strict=True)) for peer in peers}


def test_bytes_of_every_address_sum_to_the_test() -> None:
    report = server_record("10.9.0.1", "::ffff:10.9.0.2")
    assert [(peer.address, peer.streams_count) for peer in report.peers] == [
        ("10.9.0.1", 1),
        ("10.9.0.2", 1),
    ]
    sums = [sum(amount for amount, _ in rows) for rows in steps(report.peers).values()]
    # iperf3 counts the last blocks only in the totals.
    assert sum(sums) == pytest.approx(report.totals[0].received_bytes, rel=1e-4)
    assert min(sums) > 0
    assert all(active == 1 for rows in steps(report.peers).values() for _, active in rows)


def test_only_address_has_no_steps_of_its_own() -> None:
    [peer] = server_record("10.1.1.1", "10.1.1.1").peers
    assert (peer.address, peer.streams_count, peer.packed) == ("10.1.1.1", 2, "")


def test_client_record_and_invalid_address_have_no_peers() -> None:
    client = read_any((RECORDING.parent / "tcp-P2.json").read_bytes()).report
    assert client.peers == ()
    assert [peer.address for peer in server_record("nowhere", "10.9.0.2").peers] == ["10.9.0.2"]


def test_report_without_peers_is_written_as_before() -> None:
    assert "peers" not in EngineReport(engine="iperf3").to_json()


def test_long_interval_is_spread_over_its_seconds() -> None:
    rates = PeerRates()
    for address, socket in (("10.9.0.1", 1), ("10.9.0.2", 2)):
        rates.take(0.0, 1.001, {socket: 10}, {socket: address})
        rates.take(1.001, 4.0, {socket: 100}, {socket: address})
    peers = rates.peers(["10.9.0.1", "10.9.0.2"])
    assert steps(peers)["10.9.0.1"] == [(10, 1), (33, 1), (33, 1), (34, 1)]


def test_long_test_has_longer_steps_without_loss_of_bytes() -> None:
    rates = PeerRates()
    addresses = {socket: f"10.9.0.{socket}" for socket in range(1, 17)}
    for second in range(1, 1200):
        rates.take(second, second + 1.0, dict.fromkeys(addresses, 7), addresses)
    peers = rates.peers(addresses.values())
    assert {peer.step_s for peer in peers} == {5}
    assert sum(len(rows) for rows in steps(peers).values()) <= STEPS_MAX_COUNT
    assert {sum(b for b, _ in rows) for rows in steps(peers).values()} == {7 * 1199}
    assert len(EngineReport(engine="iperf3", peers=peers).to_json()) < 32_000


def test_number_of_addresses_is_limited() -> None:
    rates = PeerRates()
    for index in range(PEERS_MAX_COUNT + 9):
        rates.add(f"10.9.1.{index}", AT_S, AT_S, 1)
    assert len(rates.peers(zero_s=AT_S)) == PEERS_MAX_COUNT


def test_log_of_a_daemon_has_requests_of_every_address() -> None:
    reader = LogReader("http", "server_requests_count")
    test = reader.test_of(JobToken(job_id="run.00000.00000", lasts_s=10), AT_S)
    for second, client in enumerate(("10.9.0.1", "10.9.0.2", "::ffff:10.9.0.1")):
        transfer = Transfer(start_s=AT_S + second, end_s=AT_S + second + 1, moved_bytes=1000)
        test.add(transfer, client=client, at_s=AT_S + second + 1)
    peers = test.finish().report.peers
    assert [(peer.address, peer.streams_count) for peer in peers] == [
        ("10.9.0.1", None),
        ("10.9.0.2", None),
    ]
    assert steps(peers) == {
        "10.9.0.1": [(750, 1), (250, 0), (750, 1), (250, 0)],
        "10.9.0.2": [(750, 1), (250, 0)],
    }
    # The cells are whole UTC seconds, and the zero is the first byte.
    assert [peer.from_s for peer in peers] == [-0.25, 0.75]


def test_single_address_of_requests_keeps_its_steps() -> None:
    rates = PeerRates()
    rates.count("10.9.0.1", int(AT_S), 0, 7)
    [peer] = rates.peers(zero_s=AT_S)
    assert (read_steps(peer), peer.streams_count) == (([0], [7]), None)


@pytest.mark.parametrize("packed", ["AAAA", "A", "QlND"])
def test_invalid_steps_are_unreadable(packed: str) -> None:
    assert read_steps(PeerSeconds(address="10.9.0.1", packed=packed)) is None
