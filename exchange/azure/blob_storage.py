"""A :class:`~broadside.exchange.ports.RawStore` on Azure Blob Storage, by the official SDK.

A text is one block blob, ``<folder>/<file>.gz``, which a person may as well download and open. It
is created only: of two saves of one name the first stands, so that a repeat whose first answer was
lost finds its own text and is done.
"""

import asyncio
import re
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

from broadside.exchange.azure.wire import (
    StorageAddress,
    StorageBounds,
    StorageService,
    code_of,
    way_in,
)
from broadside.exchange.documents import DOCUMENT_MAX_BYTES, Packed, inflate, inflated_pieces
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.messages import TroubleKind
from broadside.exchange.ports import ExchangeError, ExchangeMisconfigured, RawName, RecordUnreadable
from broadside.exchange.troubles import TroubleLog

if TYPE_CHECKING:
    from broadside.exchange.azure.blob_client import ContainerClient

CALL_S: Final = 120.0  # one call with all its attempts: a burst's output is megabytes
_CONTAINER_NAME: Final = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS  # as zlib takes it

if find_spec("azure.storage.blob") is None:  # said at the start, though it is loaded later
    raise ModuleNotFoundError("the blobs' SDK is missing", name="azure.storage.blob")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobAddress(StorageAddress):
    """Which container, and who we are."""

    kind: ClassVar[str] = "blob container"
    container: str

    @property
    def place(self) -> str:
        return self.container


def open_raw(settings: FabricSettings, troubles: TroubleLog | None = None) -> "BlobRaw":
    """The store that ``settings`` name; nothing connects yet. Raises ExchangeMisconfigured."""
    name = settings.blobs_container
    if not _CONTAINER_NAME.fullmatch(name):
        raise ExchangeMisconfigured(
            f"BROADSIDE_BLOBS_CONTAINER={name}: a container's name is 3 to 63 small "
            "letters, digits and single hyphens"
        )
    address = BlobAddress(container=name, **way_in("blobs", settings))
    raw = BlobRaw(address, bounds=StorageBounds(call_s=CALL_S), troubles=troubles)
    if address.connection_string:
        raw.open()  # which is to find it malformed now
    return raw


class BlobRaw(StorageService["ContainerClient"]):
    """One container of a storage account; its connections open at the first call.

    Needs the role *Storage Blob Data Contributor* on the container or its account.
    """

    _setting = "BROADSIDE_BLOBS"
    _named_by = "BROADSIDE_BLOBS_CONTAINER"
    _role = "Storage Blob Data Contributor"
    _trouble = TroubleKind.RAW_AWAY
    _refusal = ExchangeError

    def _make_client(self) -> "ContainerClient":
        from broadside.exchange.azure.blob_client import ContainerClient, Retries

        return self._make(ContainerClient, retry_policy=Retries(self._bounds))

    async def save(self, name: RawName, text: bytes) -> None:
        from broadside.exchange.azure.blob_client import GZIP

        packed = await asyncio.to_thread(_gzipped, text)

        async def upload(client: "ContainerClient") -> None:
            try:
                await client.upload_blob(_path(name), packed, content_settings=GZIP)
            except ResourceExistsError as error:
                if code_of(error) != "BlobAlreadyExists":
                    raise

        await self._call(upload)

    async def read(self, name: RawName) -> bytes | None:
        async def download(client: "ContainerClient") -> bytes | None:
            try:
                found = await client.download_blob(_path(name))
                if found.size > DOCUMENT_MAX_BYTES:  # packed it is no larger than its text
                    raise RecordUnreadable(
                        f"{self._address}: {_path(name)}: {found.size} bytes; none of ours"
                    )
                return bytes(await found.readall())
            except ResourceNotFoundError as error:
                if code_of(error) != "BlobNotFound":
                    raise
                return None

        packed = await self._call(download)
        if packed is None:
            return None
        where = f"{self._address}: {_path(name)}"
        return await asyncio.to_thread(inflate, packed, where, form=_GZIP_FORM)

    async def delete_folder(self, folder: str) -> int:
        async def delete(client: "ContainerClient") -> int:
            names = [blob.name async for blob in client.list_blobs(name_starts_with=f"{folder}/")]
            for name in names:
                try:
                    await client.delete_blob(name)
                except ResourceNotFoundError as error:  # somebody else deletes too
                    if code_of(error) != "BlobNotFound":
                        raise
            return len(names)

        return await self._call(delete)


def _gzipped(text: bytes) -> bytes:
    """A text as gzip; one that is deflated already never lies inflated in one piece."""
    pieces = inflated_pieces(text, "output") if isinstance(text, Packed) else [text]
    gzip = zlib.compressobj(wbits=_GZIP_FORM)
    return b"".join([*map(gzip.compress, pieces), gzip.flush()])


def _path(name: RawName) -> str:
    return f"{name}.gz"
