"""Store texts of any size in a table as compressed, numbered rows.

A document is deflated and split into properties and rows. The row key is ``<name>.<part>``. The
part has three digits and starts at 000. Row 000 contains the number of rows and a checksum of all
bytes. It is written last, so a reader never receives an incomplete document.
"""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Final

from broadside.exchange.ports import PROPERTY_MAX_BYTES, Entity, RawName, RecordUnreadable, Table
from broadside.exchange.rows import cut_properties, integer_of, joined_properties, make_row

# The limit after inflating. It is four times the largest document that can be imported.
DOCUMENT_MAX_BYTES: Final = 256 * 1_048_576
_PIECE_BYTES: Final = 1_048_576
# A row must be smaller than 1 MiB after we have encoded it using base64, which adds a third.
_ROW_BYTES: Final = 11 * PROPERTY_MAX_BYTES
# This should be less than 1,000, because part numbers have three digits.
_ROWS_MAX_COUNT: Final = DOCUMENT_MAX_BYTES // _ROW_BYTES + 1


class Packed(bytes):
    """Deflated text, which can be stored or sent without inflating it."""


def packed(text: bytes) -> Packed:
    """Return the text deflated, or unchanged if it is already ``Packed``."""
    return text if isinstance(text, Packed) else Packed(zlib.compress(text))


async def document_rows(partition: str, name: str, document: bytes) -> list[Entity]:
    """Return the rows of a document in write order, with row 000 last.

    Args:
        partition: The partition key for all rows.
        name: The name of the document, the first part of every row key.
        document: Text, plain or ``Packed``.
    """
    # A document can have 40 MB, so we should not deflate it on the event loop.
    deflated = await asyncio.to_thread(packed, document)
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
    """Read a document from its rows.

    Args:
        table: The table to read.
        partition: The partition key for all rows.
        name: The document name.

    Returns:
        Inflated text, or None if row 000 does not exist.

    Raises:
        RecordUnreadable: Rows are missing, or the checksum differs.
    """
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
    """Inflate data of at most ``DOCUMENT_MAX_BYTES`` inflated bytes.

    Args:
        deflated: Deflated bytes.
        name: The name to use in error messages.
        form: ``wbits`` value of :mod:`zlib`.

    Returns:
        The inflated bytes.

    Raises:
        RecordUnreadable: Data is not deflated, incomplete or too large.
    """
    return b"".join(inflated_pieces(deflated, name, form=form, piece_bytes=DOCUMENT_MAX_BYTES))


def inflated_pieces(
    deflated: bytes, name: str, *, form: int = zlib.MAX_WBITS, piece_bytes: int = _PIECE_BYTES
) -> Iterator[bytes]:
    """Inflate data piece by piece, so that the full text is never in memory.

    Args:
        deflated: Deflated bytes.
        name: The name to use in error messages.
        form: ``wbits`` value of :mod:`zlib`.
        piece_bytes: The maximum size of a piece, in bytes.

    Yields:
        Pieces in order, each with ``piece_bytes`` bytes at most.

    Raises:
        RecordUnreadable: Data is not deflated, incomplete or too large.
    """
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
            f"{name}: incomplete, or over {DOCUMENT_MAX_BYTES / 1e6:.0f} MB unpacked; save it again"
        )


class TableRaw:
    """Raw store that saves each text as a document in a table.

    Each folder is a partition. ``close`` will not close the table, because it is being used by the
    caller.
    """

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
        """Do nothing, because the table should be closed by the caller."""
