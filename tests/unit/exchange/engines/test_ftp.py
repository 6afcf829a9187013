"""FTP downloads: lftp's script, the counters that are its account, and vsftpd's log."""

import pytest

from broadside.exchange.engines import engines, traffic_of
from broadside.exchange.messages import Flow
from tests.unit.exchange.engines.asks import client_ask, job, server_ask

FTP = engines()["ftp"]


def counters(read: int, wrote: int) -> str:
    return f"rchar: {read}\nwchar: {wrote}\nsyscr: 1\nsyscw: 1\nread_bytes: 0\n"


def test_the_script_fetches_in_segments_until_it_is_stopped() -> None:
    options = {"file_bytes": 10_000_000_000}
    traffic = traffic_of(engine="ftp", streams_count=64, options=options)
    launch = FTP.client(client_ask(job(traffic)))
    script = launch.files[0].text
    assert "repeat --while-ok -d 0 pget -n 64 10000000000 -o /dev/null\n" in script
    assert "set net:socket-bind-ipv4 10.1.0.4\n" in script
    (process,) = launch.processes
    assert process.stop_after_s == 10
    assert launch.unprivileged
    assert "limit-rate" not in script
    paced = traffic_of(engine="ftp", stream_bits_per_second=8_000_000)
    script = FTP.client(client_ask(job(paced))).files[0].text
    assert "set net:limit-rate 1000000\nset net:limit-max 100000\n" in script


def test_the_server_is_read_only_anonymous_and_never_root() -> None:
    text = FTP.server(server_ask(port=2121)).files[0].text
    for line in ("write_enable=NO", "local_enable=NO", "listen_port=2121", "port_enable=NO"):
        assert f"{line}\n" in text


def test_counters_become_seconds_from_the_look_before_data_flowed() -> None:
    reader = FTP.client_reader(job(traffic_of(engine="ftp"), duration_s=3))
    assert reader.sample("io", counters(20_000, 50), 99.96) == ()
    assert reader.sample("io", counters(21_000, 300), 99.98) == ()  # it logs in
    assert reader.sample("io", counters(521_000, 500_300), 100.0) != ()
    reader.sample("io", counters(1_521_000, 1_400_300), 101.0)
    reader.sample("io", counters(2_521_000, 2_400_300), 102.0)
    reading = reader.finish(-15)
    assert reading.usable
    assert reading.first_data_at_s == 99.98
    rows = reading.intervals[Flow.DOWN]
    assert sum(row.transferred_bytes for row in rows) == 2_500_000
    assert rows[-1].end_s == pytest.approx(2.02)
    (totals,) = reading.report.totals
    assert totals.received_bytes == 2_500_000
    (kept, files) = reading.report.measures
    assert (kept.name, kept.value) == ("kept_ratio", 0.96)
    assert (files.name, files.value) == ("files_count", 0.0024)


def test_an_end_of_its_own_is_a_failure_in_its_words() -> None:
    reader = FTP.client_reader(job(traffic_of(engine="ftp")))
    reader.feed(b"pget: warning: space allocation for /dev/null failed", 1.0)
    stderr = "pget: 1000000000: Fatal error: max-retries exceeded (Connection refused)\n"
    reading = reader.finish(1, stderr=stderr)
    assert (
        reading.report.error
        == "pget: 1000000000: Fatal error: max-retries exceeded (Connection refused)"
    )
    refused = FTP.client_reader(job(traffic_of(engine="ftp"))).finish(
        1, stderr="pget: Access failed: 550 Failed to open file. (5)\n"
    )
    assert "550 Failed to open file" in (refused.report.error or "")


def test_vsftpd_tells_transfers_whole_and_cut() -> None:
    reader = FTP.server_reader()
    log = (
        'Sat Nov 21 12:00:02 2026 [pid 1] CONNECT: Client "10.1.0.4"\n'
        'Sat Nov 21 12:00:02 2026 [pid 2] [ftp] OK DOWNLOAD: Client "10.1.0.4", "/f/1024000", '
        "1024000 bytes, 1000.00Kbyte/sec\n"
        'Sat Nov 21 12:00:02 2026 [pid 2] [ftp] FAIL DOWNLOAD: Client "10.1.0.4", "/f/1024000", '
        "512000 bytes, 1000.00Kbyte/sec\n"
        'Sat Nov 21 12:00:03 2026 [pid 5] [ftp] FAIL DOWNLOAD: Client "10.1.0.4", "/f/2", '
        "0.00Kbyte/sec\n"
    )
    reader.sample("log", log, 102.0)
    reading = reader.finish()
    assert reading.report.totals[0].sent_bytes == 1_536_000
    assert reading.first_data_at_s == 101.0
    assert reading.client_address == "10.1.0.4"
    (transfers,) = reading.report.measures
    assert transfers.value == 2
