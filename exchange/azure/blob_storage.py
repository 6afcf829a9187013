""":class:`~broadside.exchange.ports.RawStore` on Azure Blob Storage, using the Azure SDK.

Each text is a block blob ``<folder>/<file>.gz`` that you can also download and open. Blobs are
created but never overwritten, so the first save with a name wins. If the first response was lost, a
retry finds the same text and succeeds.
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
    client_settings,
    code_of,
)
from broadside.exchange.documents import DOCUMENT_MAX_BYTES, Packed, inflate, inflated_pieces
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import ExchangeError, ExchangeMisconfigured, RawName, RecordUnreadable

if TYPE_CHECKING:
    from broadside.exchange.azure.blob_client import ContainerClient

# Time limit for a call with all its attempts, in seconds. The output of a burst has megabytes.
CALL_S: Final = 120.0
_CONTAINER_NAME: Final = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
# Value of ``wbits`` that selects the gzip format in zlib.
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS

# The SDK will be imported later, but we should report now if it is missing.
if find_spec("azure.storage.blob") is None:
    raise ModuleNotFoundError("the blobs' SDK is missing", name="azure.storage.blob")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobAddress(StorageAddress):
    """Container name, endpoint and identity."""

    kind: ClassVar[str] = "blob container"
    container: str

    @property
    def place(self) -> str:
        return self.container


def open_raw(settings: FabricSettings, troubles: OutageLog | None = None) -> "BlobRaw":
    """Return the raw store for these settings, without a connection.

    Args:
        settings: The storage backend settings.
        troubles: Log to record outages in. None records none.

    Raises:
        ExchangeMisconfigured: A setting is missing or invalid.
    """
    name = settings.blobs_container
    if not _CONTAINER_NAME.fullmatch(name):
        raise ExchangeMisconfigured(
            f"BROADSIDE_BLOBS_CONTAINER={name}: a container's name is 3 to 63 small "
            "letters, digits and single hyphens"
        )
    address = BlobAddress(container=name, **client_settings("blobs", settings))
    raw = BlobRaw(address, bounds=StorageBounds(call_s=CALL_S), troubles=troubles)
    if address.connection_string:
        # This will raise an error now if the connection string is invalid.
        raw.open()
    return raw


class BlobRaw(StorageService["ContainerClient"]):
    """One container in a storage account. The first call opens the connections.

    You need the role *Storage Blob Data Contributor* on the container or the account.
    """

    _setting = "BROADSIDE_BLOBS"
    _named_by = "BROADSIDE_BLOBS_CONTAINER"
    _role = "Storage Blob Data Contributor"
    _trouble = OutageKind.RAW_AWAY
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
                downloaded = await client.download_blob(_path(name))
                # Compressed text is never larger than the text itself.
                if downloaded.size > DOCUMENT_MAX_BYTES:
                    raise RecordUnreadable(
                        f"{self._address}: {_path(name)}: {downloaded.size} bytes; "
                        "Broadside did not write it"
                    )
                return bytes(await downloaded.readall())
            except ResourceNotFoundError as error:
                if code_of(error) != "BlobNotFound":
                    raise
                return None

        packed = await self._call(download)
        if packed is None:
            return None
        place = f"{self._address}: {_path(name)}"
        return await asyncio.to_thread(inflate, packed, place, form=_GZIP_FORM)

    async def delete_folder(self, folder: str) -> int:
        async def delete(client: "ContainerClient") -> int:
            names = [blob.name async for blob in client.list_blobs(name_starts_with=f"{folder}/")]
            for name in names:
                try:
                    await client.delete_blob(name)
                except ResourceNotFoundError as error:
                    # Another process might delete the same blobs.
                    if code_of(error) != "BlobNotFound":
                        raise
            return len(names)

        return await self._call(delete)


def _gzipped(text: bytes) -> bytes:
    """Return a text in gzip format. Text that is already deflated is converted in pieces."""
    pieces = inflated_pieces(text, "output") if isinstance(text, Packed) else [text]
    gzip = zlib.compressobj(wbits=_GZIP_FORM)
    return b"".join([*map(gzip.compress, pieces), gzip.flush()])


def _path(name: RawName) -> str:
    return f"{name}.gz"
