"""Tests for FTP downloads with lftp's script and counters and vsftpd's log."""

import calendar
from typing import cast

import pytest

from broadside.exchange.engines import engines, traffic_of
from broadside.exchange.engines.port import DaemonReader, EngineResult
from broadside.exchange.messages import Flow
from tests.unit.exchange.engines.asks import client_ask, job, server_ask

FTP = engines()["ftp"]


def counters(read: int, wrote: int) -> str:
    return f"rchar: {read}\nwchar: {wrote}\nsyscr: 1\nsyscw: 1\nread_bytes: 0\n"


def test_script_downloads_in_segments_until_stopped() -> None:
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


def test_script_uploads_a_file_for_every_stream() -> None:
    options = {"file_bytes": 5_000_000, "compressible_percent": 50}
    traffic = traffic_of(engine="ftp", direction="forward", streams_count=2, options=options)
    launch = FTP.client(client_ask(job(traffic)))
    store = "repeat --while-ok -d 0 put /work/x/files/5000000-50 -o upload\n"
    assert launch.files[0].text.endswith(store)
    assert len(launch.processes) == 2
    assert [file.name for file in launch.files[1:]] == ["files/5000000-50", "blocks/50"]
    assert launch.processes[0].env["BROADSIDE_BODIES"] == "/work/x/blocks"
    assert "uploads files by FTP over TCP, 2 at a time" in FTP.statement(traffic)


def test_uploads_count_at_both_ends() -> None:
    upload = traffic_of(engine="ftp", direction="forward")
    reader = FTP.client_reader(job(upload, duration_s=3))
    for at_s, wrote in ((99.98, 50), (100.0, 500_050), (101.0, 1_500_050)):
        reader.sample("io", counters(9 * wrote, wrote), at_s)
    reading = reader.finish(-15)
    assert reading.usable
    (totals,) = reading.report.totals
    assert (totals.flow, totals.sent_bytes) == (Flow.UP, 1_500_000)
    assert reading.report.streams_count == 1
    text = 'OK UPLOAD: Client "10.1.0.4", "/f/upload", 1500000 bytes, 1000.00Kbyte/sec'
    (served,) = served_by(login_line(1, 1) + logged(2, 1, text))
    (totals,) = served.report.totals
    assert (totals.flow, totals.received_bytes) == (Flow.UP, 1_500_000)


def test_the_server_discards_uploads_and_is_never_root() -> None:
    files = FTP.server(server_ask(port=2121)).files
    for line in ("deny_file=/", "local_enable=NO", "listen_port=2121", "port_enable=NO"):
        assert f"{line}\n" in files[0].text
    assert [file.link_to for file in files if file.name == "files/upload"] == ["/dev/null"]
    assert files[-1].is_closed_folder


def test_first_interval_starts_at_the_sample_before_data() -> None:
    reader = FTP.client_reader(job(traffic_of(engine="ftp"), duration_s=3))
    assert reader.sample("io", counters(20_000, 50), 99.96) == ()
    # lftp logs in.
    assert reader.sample("io", counters(21_000, 300), 99.98) == ()
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
    (ratio, files) = reading.report.measures
    assert (ratio.name, ratio.value) == ("kept_ratio", 0.96)
    assert (files.name, files.value) == ("files_count", 0.0024)


def test_unexpected_exit_is_a_failure_with_the_program_message() -> None:
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


def test_late_sample_makes_one_longer_interval() -> None:
    reader = FTP.client_reader(job(traffic_of(engine="ftp"), duration_s=9))
    for at_s, read in ((99.98, 0), (100.0, 500), (101.0, 1500), (104.0, 4500), (105.0, 5500)):
        reader.sample("io", counters(read * 1000, read * 1000), at_s)
    rows = reader.finish(-15).intervals[Flow.DOWN]
    assert [round(row.end_s - row.start_s, 2) for row in rows] == [0.02, 1.0, 3.0, 1.0]
    assert [row.transferred_bytes for row in rows] == [500_000, 1_000_000, 3_000_000, 1_000_000]


AT_S = calendar.timegm((2026, 11, 21, 12, 0, 0))


def logged(second: int, pid: int, text: str) -> str:
    return f"Sat Nov 21 12:00:{second:02d} 2026 [pid {pid}] [ftp] {text}\n"


def login_line(second: int, pid: int, test_id: str = "r1.00000.00000.10") -> str:
    return logged(second, pid, f'OK LOGIN: Client "10.1.0.4", anon password "{test_id}"')


def transfer_line(second: int, pid: int, sent: int, rate: float, result: str = "OK") -> str:
    text = f'{result} DOWNLOAD: Client "10.1.0.4", "/f/1024000", {sent} bytes, {rate:.2f}Kbyte/sec'
    return logged(second, pid, text)


def served_by(log: str, at_s: float = 3.0) -> list[EngineResult]:
    """Return the readings for all tests in vsftpd's log."""
    reader = FTP.server_reader()
    reader.sample("log", log, AT_S + at_s)
    return [test.finish() for test in cast(DaemonReader, reader).tests.values()]


def test_vsftpd_log_has_complete_and_aborted_transfers() -> None:
    log = (
        'Sat Nov 21 12:00:01 2026 [pid 1] CONNECT: Client "10.1.0.4"\n'
        + login_line(1, 1)
        + transfer_line(2, 1, 1024000, 1000.0)
        + transfer_line(2, 1, 512000, 1000.0, "FAIL")
        + logged(3, 1, 'FAIL DOWNLOAD: Client "10.1.0.4", "/f/2", 0.00Kbyte/sec')
    )
    (reading,) = served_by(log)
    assert reading.report.totals[0].sent_bytes == 1_536_000
    assert reading.report.cookie == "r1.00000.00000"
    # Transfers should end before their second does.
    assert reading.first_data_at_s == AT_S + 2.0
    assert reading.client_address == "10.1.0.4"
    (transfers,) = reading.report.measures
    assert transfers.value == 2


def test_transfer_over_the_complete_burst_is_one_interval() -> None:
    (reading,) = served_by(login_line(0, 1) + transfer_line(10, 1, 10_240_000, 1000.0), at_s=10.25)
    (row,) = reading.intervals[Flow.DOWN]
    assert (row.end_s - row.start_s, row.transferred_bytes) == (10.0, 10_240_000)


def test_connection_belongs_to_the_token_of_its_login() -> None:
    log = (
        login_line(1, 7)
        + login_line(1, 8, "r2.00000.00000.10")
        + login_line(1, 9, "somebody@")
        + transfer_line(2, 8, 200, 1.0)
        + transfer_line(2, 9, 9000, 1.0)
        # No login.
        + transfer_line(2, 5, 9000, 1.0)
        + transfer_line(2, 7, 100, 1.0)
        # The process id is now used by another connection.
        + login_line(2, 7, 'quoted" text')
        + transfer_line(2, 7, 9000, 1.0)
    )
    sent = {r.report.cookie: r.report.totals[0].sent_bytes for r in served_by(log)}
    assert sent == {"r1.00000.00000": 100, "r2.00000.00000": 200}


def test_forged_user_name_is_not_a_login() -> None:
    forged = 'a] OK LOGIN: Client "10.1.0.4", anon password "r1.00000.00000.10"'
    log = f'Sat Nov 21 12:00:01 2026 [pid 7] [{forged}] FAIL LOGIN: Client "10.9.9.9"\n'
    assert served_by(log + transfer_line(2, 7, 9000, 1.0)) == []


@pytest.mark.parametrize(
    "impossible",
    [
        # The transfer took an hour.
        transfer_line(2, 1, 36_000_000, 10_000 / 1024),
        # The line is an hour old.
        transfer_line(2, 1, 1000, 1.0).replace("12:00", "11:00"),
        transfer_line(2, 1, 1000, 1.0).replace("12:00", "13:00"),
    ],
)
def test_transfer_outside_the_test_is_not_placed_in_seconds(impossible: str) -> None:
    (reading,) = served_by(login_line(1, 1) + impossible + transfer_line(2, 1, 100, 1.0))
    assert len(reading.intervals[Flow.DOWN]) == 1
    measures = {measure.name: measure.value for measure in reading.report.measures}
    assert measures == {"server_transfers_count": 1, "server_unplaced_count": 1}


def test_data_connections_may_come_from_other_addresses() -> None:
    """Check this, because a device can use a new address from its pool for each
    connection."""
    assert "pasv_promiscuous=YES\n" in FTP.server(server_ask(port=2121)).files[0].text


def test_login_has_the_token_of_the_job() -> None:
    script = FTP.client(client_ask(job(traffic_of(engine="ftp")))).files[0].text
    assert "open -u anonymous,r1.00000.00000.10 ftp://10.2.0.4:8080\n" in script
