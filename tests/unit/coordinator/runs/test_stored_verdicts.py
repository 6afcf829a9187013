"""Runs that an earlier Broadside stored and judged: every figure and verdict recomputes.

``tests/data/stored`` holds their rows, a JSON line each: real fleets on loopback (TCP both ways,
UDP, HTTP, a study's two rates; a coordinator killed, a run aborted) and a planted one with clients
killed and a firewall's ledger. Sentences may be worded anew; numbers, states and what was found
may not, unless what was stored was wrong: then ``python -m
tests.unit.coordinator.runs.test_stored_verdicts`` judges them anew, and CHANGELOG says why.
"""

import asyncio
import base64
import gzip
import json
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.ports import Entity, Value
from broadside.exchange.records import Document

STORED = sorted((Path(__file__).parents[3] / "data" / "stored").glob("*.jsonl.gz"))
WORDS = (
    *("sentence", "next_step", "advice", "evidence", "refuted_by", "not_known"),
    *("how", "header_how"),
)


def value(told: Any) -> Value:
    if not isinstance(told, dict):
        return told  # type: ignore[no-any-return]  # JSON's other values are a row's
    if "at" in told:
        return datetime.fromisoformat(told["at"])
    return base64.b64decode(told["base64"])


def told(value: Value) -> Any:
    if isinstance(value, datetime):
        return {"at": value.isoformat()}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


async def load(fabric: Fabric, path: Path) -> None:
    for table, partition, key, properties in lines(path):
        row = Entity(
            partition_key=partition,
            row_key=key,
            properties={name: value(told) for name, told in properties.items()},
        )
        await getattr(fabric, table).batch([row])


async def judge_anew(path: Path, folder: Path) -> None:
    """Write the fixture again with what today's code makes of its rows."""
    fabric = open_fabric(FabricSettings(data_dir=folder))
    try:
        await load(fabric, path)
        coordinator = Coordinator(fabric)
        for run_id in [header.run_id async for header in fabric.records.private.list_runs()]:
            again = await coordinator.recompute(run_id)
            assert isinstance(again, RunSummary)
            await fabric.records.private.save_document(run_id, Document.RUN, canonical(again))
        rows = []
        for table, partition in dict.fromkeys((line[0], line[1]) for line in lines(path)):
            async for row in getattr(fabric, table).scan(partition):
                properties = {name: told(item) for name, item in row.properties.items()}
                rows.append(json.dumps([table, partition, row.row_key, properties]))
        path.write_bytes(  # noqa: ASYNC240 - nothing else runs here
            gzip.compress("\n".join(rows).encode(), mtime=0)
        )
    finally:
        await fabric.close()


def without_words(summary: bytes) -> object:
    """And without what says nothing: fields that came since are not in what was stored."""

    def kept(told: Any) -> Any:
        if isinstance(told, dict):
            return {
                name: kept(part)
                for name, part in told.items()
                if name not in WORDS and part not in (None, [])
            }
        return [kept(part) for part in told] if isinstance(told, list) else told

    return kept(json.loads(summary))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
async def test_what_was_stored_recomputes(path: Path, fabric: Fabric) -> None:
    await load(fabric, path)
    coordinator = Coordinator(fabric)
    runs = [header.run_id async for header in fabric.records.private.list_runs()]
    assert runs
    for run_id in runs:
        stored = await fabric.records.private.read_document(run_id, Document.RUN)
        again = await coordinator.recompute(run_id)
        assert stored is not None
        assert isinstance(again, RunSummary)
        assert without_words(canonical(again)) == without_words(stored)


if __name__ == "__main__":
    for stored in STORED:
        with TemporaryDirectory() as folder:
            asyncio.run(judge_anew(stored, Path(folder)))
