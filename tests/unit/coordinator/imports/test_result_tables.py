"""Tests for tables in the original format. Invalid ones are an error in one line."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from broadside.coordinator.imports import BadFile
from tests.unit.coordinator.imports.small_tables import HEADER, NEW_YORK, fleet, parse, row

DATA = Path(__file__).parents[3] / "data" / "original"
SEED = (DATA / "seed-280s-30clients.csv").read_text(encoding="utf-8")


def test_reads_the_complete_seed_table() -> None:
    table = parse(SEED, "seed-280s-30clients.csv")
    assert len(table.rows) == 179
    first = table.rows[0]
    assert (first.client, first.row_number, first.server) == ("10.2.0.10", 2, "10.1.0.28")
    assert first.started_at == datetime(2022, 1, 4, 16, 30, tzinfo=UTC)
    assert first.received_bits_per_second == 5613692000
    assert sum(row.received_bits_per_second is None for row in table.rows) == 5
    assert [note.id for note in table.notes] == ["pairs-assumed"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("PartitionKey,RowKey", "partitionkey , ROWKEY"),
        lambda text: text + "\n\n,,,,,\n",
        lambda text: "Results of 4 January,,,,,\n" + text,
        lambda text: text + 'Grand Total,,"1,082,080,176,000","1,081,095,180,000",,\n',
        lambda text: text + ",,,76472.87538,,\n",
        lambda text: text + text.splitlines()[0] + "\n",
        lambda text: text.replace("5613692000", '"5,613,692,000"').replace("null", ""),
        lambda text: text.replace("5613692000", "5613692000.0").replace("null", "NULL"),
    ],
    ids=[
        *("crlf", "semicolons", "tabs", "case", "blank rows", "title", "grand total"),
        *("summary row", "header again", "thousands", "spelling"),
    ],
)
def test_accepts_format_variants(change: object) -> None:
    assert callable(change)
    seed = parse(SEED)
    result = parse(change(SEED))
    assert [(r.client, r.started_at, r.received_bits_per_second) for r in result.rows] == [
        (r.client, r.started_at, r.received_bits_per_second) for r in seed.rows
    ]


def test_skips_type_columns_unknown_columns_and_other_tests() -> None:
    header = (
        "PartitionKey,RowKey,test_type,test_type@type,latency_mean,sent_throughput,"
        "sent_throughput@type,received_throughput,mean_rtt,mean_rtt@type,duration,colour"
    )
    table = parse(
        [
            header,
            '10.2.0.1,01 27 2022 16 00 00,iperf3,String,,"1,806",String,"1,801",66492,Int32,5,red',
            "10.2.0.2,01 27 2022 16 00 00,vegeta,String,20.5,,,,,,,red",
            "10.2.0.3,01 27 2022 16 00 00,,,20.5,,,,,,,red",
            "10.2.0.4,01 27 2022 16 00 00,ethr,String,,7,,7,,,,red",
            ",,,,,,,,76472.8,,,",
        ]
    )
    (result,) = table.rows
    assert result.sent_bits_per_second == 1806
    assert result.rtt_mean_s == pytest.approx(0.066492)
    assert table.skipped_rows == {"vegeta": 1, "other": 1, "ethr": 1, "summary or title": 1}
    notes = {note.id: note.sentence for note in table.notes}
    assert "colour" in notes["columns-ignored"]
    assert "1 vegeta" in notes["rows-skipped"]


def test_converts_durations_in_minutes_of_later_clients() -> None:
    lines = ["PartitionKey,RowKey,test_type,sent_throughput,received_throughput,duration"]
    lines += [f"10.2.0.1,01 27 2022 16 {m:02d} 00,iperf3,2,1,5" for m in (0, 5, 10)]
    table = parse(lines)
    assert {result.duration_s for result in table.rows} == {240}
    assert "duration-minutes" in {note.id for note in table.notes}
    # Without a test_type, or with another number, this is in seconds.
    assert {r.duration_s for r in parse([lines[0], lines[1].replace("00 00", "03 00")]).rows} == {5}
    plain = [line.replace(",test_type", "").replace(",iperf3", "") for line in lines]
    assert {r.duration_s for r in parse(plain).rows} == {5}


def test_reads_a_table_without_durations() -> None:
    lines = [line.rpartition(",")[0] for line in fleet(2, 3)]
    assert {result.duration_s for result in parse(lines).rows} == {None}
    assert {result.duration_s for result in parse(lines, duration_s=31).rows} == {31}


def test_selects_rows_by_time_and_applies_the_zone() -> None:
    first_at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    table = parse(
        fleet(2, 6),
        from_at=first_at + timedelta(minutes=5),
        before_at=first_at + timedelta(minutes=15),
    )
    assert sorted({row.started_at for row in table.rows}) == [
        first_at + timedelta(minutes=5),
        first_at + timedelta(minutes=10),
    ]
    east = parse(fleet(1, 1), zone=ZoneInfo("Europe/Berlin")).rows[0]
    assert east.started_at == datetime(2022, 1, 4, 10, 0, tzinfo=UTC)


def test_reads_start_times_in_iso_8601() -> None:
    table = parse([HEADER, "a,2022-01-04T16:00:00Z,2,1,s,280", "b,2022-01-04T16:00:00Z,2,1,s,280"])
    assert {row.started_at for row in table.rows} == {datetime(2022, 1, 4, 16, 0, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a,b,c", "1,2,3"], ["row 1", "PartitionKey", "found: a, b, c"]),
        ([HEADER.replace("received", "recieved"), row(1, 0)], ["row 1", "received_throughput"]),
        ([row(1, 0), row(2, 0)], ["row 1", "PartitionKey", "header"]),
        ([f"{HEADER},test_type", f"{row(1, 0)},ethr"], ["no row", "1 ethr", "--profile"]),
        (
            ["PartitionKey,RowKey,test_type,latency_mean", "a,b,iperf3,1"],
            ["row 1", "sent_through", "--profile"],
        ),
        ([f"{HEADER},duration", row(1, 0)], ["row 1", "duration", "twice"]),
        ([HEADER], ["no row", "only a header"]),
        ([*fleet(2, 2), row(1, 5)], ["row 6, RowKey", "row 4 has the same"]),
        ([HEADER, row(1, 0, "-5")], ["row 2, received_throughput", "-5"]),
        ([HEADER, row(1, 0, "1e18")], ["row 2, received_throughput", "1e+18", "Tbit/s"]),
        (
            [f"{HEADER},mean_rtt", f"{row(1, 0)},100000000"],
            ["row 2, mean_rtt", "1e+08", "between 0 and 60 s"],
        ),
        (
            [HEADER, row(1, 0).replace("5100000000", "2e13")],
            ["row 2, sent_throughput", "2e+13", "Tbit/s"],
        ),
        ([HEADER, row(1, 0).replace("280", "0")], ["row 2, duration", "above 0"]),
        ([HEADER, row(1, 0, "1e999")], ["row 2, received_throughput", "inf"]),
        ([HEADER, row(1, 0, "NaN")], ["row 2, received_throughput", "'NaN'", "null"]),
        ([HEADER, row(1, 0, "fast")], ["row 2, received_throughput", "'fast'"]),
        ([HEADER, row(1, 0).replace("280", "-1")], ["row 2, duration", "-1"]),
        ([HEADER, row(1, 0).replace("280", "90000")], ["row 2, duration", "90000"]),
        ([HEADER, row(1, 0, "4,732,364,067")], ["row 2", "9 cells", "quoted"]),
        ([HEADER, row(1, 0)[:40]], ["row 2", "complete"]),
        ([HEADER, f'"{row(1, 0)}'], ["row 2", "not CSV"]),
        (
            [HEADER, row(1, 0).replace("01 04", "13 04")],
            ["row 2, RowKey", "a time such as 01 04 2022 11 25 00"],
        ),
        (
            [HEADER, row(1, 0).replace("01 04 2022", "4.1.22")],
            ["row 2, RowKey", "01 04 2022 11 25 00 or 2022-01-04T11:25:00"],
        ),
        ([HEADER, row(1, 0).replace("2022", "2092")], ["row 2, RowKey", "future"]),
        ([HEADER, row(1, 0).replace("2022", "1022")], ["row 2, RowKey", "year"]),
        ([HEADER, ",01 04 2022 11 00 00,2,1,s,280"], ["row 2, PartitionKey"]),
        ([HEADER, "10.2.0.1,,2,1,s,280"], ["row 2, RowKey", "''"]),
        (
            [HEADER, row(1, 0), "b,2022-01-04T16:00:00Z,2,1,s,280"],
            ["row 3, RowKey", "zone", "no zone", "one zone"],
        ),
        (
            [HEADER, row(1, 30).replace("01 04 2022 11", "11 06 2022 01")],
            ["row 2, RowKey", "'11 06 2022 01 30 00'", "twice", "UTC-04:00 or UTC-05:00"],
        ),
        (
            [HEADER, row(1, 30).replace("01 04 2022 11", "03 13 2022 02")],
            ["row 2, RowKey", "'03 13 2022 02 30 00'", "skipped"],
        ),
        (
            [f"{HEADER},Timestamp", f"{row(1, 0)},2022-01-04T11:05:00.5Z"],
            ["row 2, RowKey", "before it started", "America/New_York"],
        ),
    ],
)
def test_invalid_input_is_a_one_line_error(lines: list[str], expected: list[str]) -> None:
    with pytest.raises(BadFile) as caught:
        parse(lines)
    text = str(caught.value)
    assert text.startswith("table.csv: ")
    assert "\n" not in text
    for part in expected:
        assert part in text


def test_reads_an_ambiguous_time_with_an_offset() -> None:
    from broadside.coordinator.imports.time_text import parse_zone

    line = row(1, 30).replace("01 04 2022 11", "11 06 2022 01")
    (result,) = parse([HEADER, line], zone=parse_zone("UTC-05:00")).rows
    assert result.started_at == datetime(2022, 11, 6, 6, 30, tzinfo=UTC)


def test_rejects_too_few_planned_pairs() -> None:
    with pytest.raises(BadFile, match="--pairs-planned 2, but 3 clients"):
        parse(fleet(3, 2), pairs_planned=2)
    assert parse(fleet(3, 2), pairs_planned=4).pairs_planned == 4


def test_rejects_a_time_range_without_rows() -> None:
    with pytest.raises(BadFile, match="no row between"):
        parse(fleet(1, 1), before_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_rejects_more_rows_than_a_run_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broadside.coordinator.imports.table_reader.ROWS_MAX_COUNT", 5)
    with pytest.raises(BadFile, match="row 7: more than 5 results"):
        parse(fleet(3, 2))


def test_accepts_timestamps_after_the_start() -> None:
    table = parse([f"{HEADER},Timestamp", f"{row(1, 0)},2022-01-04T16:04:41.5Z"], zone=NEW_YORK)
    assert len(table.rows) == 1
