"""A :class:`~exchange.ports.RawStore` in the table itself, where no blob account is given."""

from exchange.documents import document_rows, read_document
from exchange.ports import RawName, Table


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
