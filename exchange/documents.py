"""A text of any size in a table: deflated, cut into properties, and those into rows.

``<name>.<part>`` with three digits from 000. Row 000 says how many rows there are, with a checksum
of the whole, and is written last, so a document that shows is whole.
"""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Final

from broadside.exchange.ports import PROPERTY_MAX_BYTES, Entity, RawName, RecordUnreadable, Table
from broadside.exchange.rows import cut_properties, integer_of, joined_properties, make_row

DOCUMENT_MAX_BYTES: Final = 256 * 1_048_576  # inflated: four times the largest that is imported
_PIECE_BYTES: Final = 1_048_576
_ROW_BYTES: Final = 11 * PROPERTY_MAX_BYTES  # of one row: below 1 MiB in base64
_ROWS_MAX_COUNT: Final = DOCUMENT_MAX_BYTES // _ROW_BYTES + 1  # below 1,000: three digits


class Packed(bytes):
    """A text deflated, as whoever holds it had it on disk: nobody inflates it to send it."""


def packed(text: bytes) -> Packed:
    """A text deflated, if it was not yet."""
    return text if isinstance(text, Packed) else Packed(zlib.compress(text))


async def document_rows(partition: str, name: str, document: bytes) -> list[Entity]:
    """A document's rows in the order to write them: the one that makes it show comes last."""
    deflated = await asyncio.to_thread(packed, document)  # off the loop: may be 40 MB
    cuts = range(0, len(deflated), _ROW_BYTES)
    rows = [
        make_row(
            partition,
            f"{name}.{number:03d}",
            cut_properties("part", deflated[at : at + _ROW_BYTES])
            | ({"rows_count": len(cuts), "crc": zlib.crc32(deflated)} if number == 0 else {}),
        )
        for number, at in enumerate(cuts)
    ]
    return [*rows[1:], rows[0]]


async def read_document(table: Table, partition: str, name: str) -> bytes | None:
    """The document, or None. Raises ``RecordUnreadable`` when it is not whole."""
    first = await table.get(partition, f"{name}.000")
    if first is None:
        return None
    parts = joined_properties(first, "part")
    rows_count = integer_of(first, "rows_count")
    if not 1 <= rows_count <= _ROWS_MAX_COUNT:
        raise RecordUnreadable(f"document {partition}|{name}: of {rows_count} rows; save it again")
    for number in range(1, rows_count):
        row = await table.get(partition, f"{name}.{number:03d}")
        parts += b"" if row is None else joined_properties(row, "part")
    if zlib.crc32(parts) != integer_of(first, "crc"):
        raise RecordUnreadable(
            f"document {partition}|{name}: half written or corrupt; save it again"
        )
    return await asyncio.to_thread(inflate, parts, f"document {partition}|{name}")


def inflate(deflated: bytes, name: str, *, form: int = zlib.MAX_WBITS) -> bytes:
    """What was deflated, of bounded size. Raises ``RecordUnreadable``, which says ``name``."""
    return b"".join(inflated_pieces(deflated, name, form=form, piece_bytes=DOCUMENT_MAX_BYTES))


def inflated_pieces(
    deflated: bytes, name: str, *, form: int = zlib.MAX_WBITS, piece_bytes: int = _PIECE_BYTES
) -> Iterator[bytes]:
    """The same, a piece at a time: never the whole text at once."""
    stream, left, count = zlib.decompressobj(form), deflated, 0
    try:
        while left and not stream.eof and count < DOCUMENT_MAX_BYTES:
            piece = stream.decompress(left, piece_bytes)
            left = stream.unconsumed_tail
            count += len(piece)
            yield piece
    except zlib.error as error:
        raise RecordUnreadable(f"{name}: not deflated ({error}); save it again") from error
    if not stream.eof:
        raise RecordUnreadable(
            f"{name}: cut short, or over {DOCUMENT_MAX_BYTES / 1e6:.0f} MB inflated; save it again"
        )


class TableRaw:
    """Each text a document; a folder is a partition of its own. The table stays its giver's."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def save(self, name: RawName, text: bytes) -> None:
        await self._table.batch(await document_rows(name.folder, name.file, text))

    async def read(self, name: RawName) -> bytes | None:
        return await read_document(self._table, name.folder, name.file)

    async def delete_folder(self, folder: str) -> int:
        rows = {row.row_key async for row in self._table.scan(folder)}
        await self._table.delete_partition(folder)
        return sum(key.endswith(".000") for key in rows)

    async def close(self) -> None:
        """Nothing to release."""
