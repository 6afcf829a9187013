"""Tests to recompute runs that were stored by earlier versions.

See ``tests/data/stored`` for the rows. Most are from a real fleet on loopback: TCP in both
directions, UDP, HTTP, two rates for a study, and runs that were aborted or for which the
coordinator was killed. For another fleet, clients were killed and there is a device counter. The
text can change, but no number, state or finding should, unless what was stored is wrong. If so, use
``python -m tests.unit.coordinator.runs.test_stored_verdicts`` to write the files again, and give
the reason in CHANGELOG.
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

from broadside.coordinator.core.summary import RunSummary, canonical, parse_run
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.ports import Entity, Value
from broadside.exchange.records import Document

STORED = sorted((Path(__file__).parents[3] / "data" / "stored").glob("*.jsonl.gz"))
TEXT_FIELDS = (
    *("sentence", "next_step", "advice", "evidence", "refuted_by", "not_known"),
    *("how", "header_how", "reason", "cause", "causes"),
)


def value(raw: Any) -> Value:
    if not isinstance(raw, dict):
        return raw  # type: ignore[no-any-return]  # other JSON values are used as they are
    if "at" in raw:
        return datetime.fromisoformat(raw["at"])
    return base64.b64decode(raw["base64"])


def to_json(value: Value) -> Any:
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
            properties={name: value(raw) for name, raw in properties.items()},
        )
        await getattr(fabric, table).batch([row])


async def rewrite_fixture(path: Path, folder: Path) -> None:
    """Write the file again, using the current code."""
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
                properties = {name: to_json(item) for name, item in row.properties.items()}
                rows.append(json.dumps([table, partition, row.row_key, properties]))
        path.write_bytes(  # noqa: ASYNC240 - nothing else runs here
            gzip.compress("\n".join(rows).encode(), mtime=0)
        )
    finally:
        await fabric.close()


def numbers_of(summary: bytes) -> object:
    """Return the summary without any text.

    A field that is new will be empty in what was stored, so it is not compared.
    """

    def without_texts(raw: Any) -> Any:
        if isinstance(raw, dict):
            return {
                name: without_texts(part)
                for name, part in raw.items()
                if name not in TEXT_FIELDS and part not in (None, [])
            }
        return [without_texts(part) for part in raw] if isinstance(raw, list) else raw

    return without_texts(json.loads(summary))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
async def test_stored_runs_recompute_identically(path: Path, fabric: Fabric) -> None:
    await load(fabric, path)
    coordinator = Coordinator(fabric)
    runs = [header.run_id async for header in fabric.records.private.list_runs()]
    assert runs
    for run_id in runs:
        stored = await fabric.records.private.read_document(run_id, Document.RUN)
        again = await coordinator.recompute(run_id)
        assert stored is not None
        assert isinstance(again, RunSummary)
        # Fields that were renamed since have their current names.
        assert numbers_of(canonical(again)) == numbers_of(canonical(parse_run(stored)))


if __name__ == "__main__":
    for stored in STORED:
        with TemporaryDirectory() as folder:
            asyncio.run(rewrite_fixture(stored, Path(folder)))
