"""A text of any size in a table: deflated, cut into properties, and those into rows.

``<name>.<part>`` with three digits from 000. Row 000 says how many rows there are, with a checksum
of the whole, and is written last, so a document that shows is whole.
"""

import asyncio
import zlib
from typing import Final

from exchange.ports import PROPERTY_MAX_BYTES, Entity, RecordUnreadable, Table
from exchange.rows import cut_properties, integer_of, joined_properties, make_row

_ROW_BYTES: Final = 11 * PROPERTY_MAX_BYTES  # of one row: below 1 MiB in base64


async def document_rows(partition: str, name: str, document: bytes) -> list[Entity]:
    """A document's rows in the order to write them: the one that makes it show comes last."""
    packed = await asyncio.to_thread(zlib.compress, document)  # off the loop: may be 40 MB
    cuts = range(0, len(packed), _ROW_BYTES)
    rows = [
        make_row(
            partition,
            f"{name}.{number:03d}",
            cut_properties("part", packed[at : at + _ROW_BYTES])
            | ({"rows_count": len(cuts), "crc": zlib.crc32(packed)} if number == 0 else {}),
        )
        for number, at in enumerate(cuts)
    ]
    return [*rows[1:], rows[0]]


async def read_document(table: Table, partition: str, name: str) -> bytes | None:
    """The document, or None. Raises ``RecordUnreadable`` when it is not whole."""
    first = await table.get(partition, f"{name}.000")
    if first is None:
        return None
    packed = joined_properties(first, "part")
    for number in range(1, integer_of(first, "rows_count")):
        row = await table.get(partition, f"{name}.{number:03d}")
        packed += b"" if row is None else joined_properties(row, "part")
    if zlib.crc32(packed) != integer_of(first, "crc"):
        raise RecordUnreadable(
            f"document {partition}|{name}: half written or corrupt; save it again"
        )
    return await asyncio.to_thread(zlib.decompress, packed)
