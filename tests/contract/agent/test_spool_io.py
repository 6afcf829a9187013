"""Tests for spool that need processes, sockets or real time."""

from pathlib import Path

from tests.unit.exchange.embedded.test_embedded_fabric import run_in_mount_namespace

FULL_DISK = """
import asyncio, logging, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from broadside.agent.raw_spool import SpooledRaw
from broadside.agent.spool import Spool, SpooledTable
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from tests.unit.agent.doubles import MemoryTable
from tests.unit.agent.test_raw_spool import MemoryRaw, named, noise, row

async def main():
    troubles, folder = OutageLog(), Path({folder!r})
    spool, table, store = Spool(folder, 10**9), MemoryTable(), MemoryRaw()
    rows, raw = SpooledTable(table, spool, troubles), SpooledRaw(store, spool, troubles)
    table.away = store.away = True
    for index in range(3):
        await raw.save(named(index), noise(index, 20_000))
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    for index in range(2):
        await rows.upsert(row(f"chunk.{{index}}", 12_000))
    await raw.save(named(9), noise(9, 20_000))
    given_up = [index for index in range(3) if named(index) not in spool._raws]
    table.away = store.away = False
    await rows.drain()
    await raw.drain()
    counts = {{t.kind: t.count for t in troubles._spells}}
    sent = sorted(name.file[-1] for name in store.texts)
    print(table.written, given_up, sent, counts[OutageKind.LOST])

logging.disable()
asyncio.run(main())
"""


def test_full_disk_drops_raw_output_before_rows(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    script = FULL_DISK.format(root=root, folder=str(tmp_path))
    text = run_in_mount_namespace(tmp_path, "size=200k", script)
    assert text == "['chunk.0', 'chunk.1'] [1, 2] ['0'] 3\n"
