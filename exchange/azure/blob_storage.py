"""A :class:`~exchange.ports.RawStore` on Azure Blob Storage, by the official SDK.

A text is one block blob, ``<folder>/<file>.gz``, which a person may as well download and open. It
is created only: of two saves of one name the first stands, so that a repeat whose first answer was
lost finds its own text and is done.
"""

import asyncio
import gzip
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import ContentSettings
from azure.storage.blob.aio import ContainerClient, ExponentialRetry

from exchange.azure.wire import (
    Identity,
    StorageAddress,
    Transport,
    check_way_in,
    code_of,
    explain_entry,
    is_final,
    said_by,
)
from exchange.documents import inflate
from exchange.fabric_settings import FabricSettings
from exchange.messages import TroubleKind
from exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeUnavailable,
    RawName,
)
from exchange.troubles import TroubleLog

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_ROLE: Final = "Storage Blob Data Contributor"
_CONTAINER_NAME: Final = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS  # as zlib takes it
_GZIP: Final = ContentSettings(content_type="application/gzip")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobBounds:
    """How long the SDK tries before a call raises :class:`ExchangeUnavailable`.

    It repeats what times out (408) or fails (5xx: also 503, which is how blobs throttle) and what
    a broken connection interrupts; the pauses are ``backoff_s`` and then ``backoff_s + 2**n``: with
    the defaults 1 + 3 + 5 s besides the attempts.
    """

    retries_max_count: int = 3
    backoff_s: int = 1
    attempt_s: float = 15.0  # to connect, and without a byte of the answer
    call_s: float = 120.0  # one call with all its attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobAddress(StorageAddress):
    """Which container, and who we are."""

    container: str

    def __str__(self) -> str:
        return f"blob container {self.container!r}" + f" at {self.endpoint}" * bool(self.endpoint)


def open_raw(settings: FabricSettings, troubles: TroubleLog | None = None) -> "BlobRaw":
    """The store that ``settings`` name; nothing connects yet. Raises ExchangeMisconfigured."""
    secret = settings.blobs_connection_string
    address = BlobAddress(
        container=settings.blobs_container,
        endpoint=settings.blobs_endpoint or None,
        connection_string=secret.get_secret_value() if secret else None,
        client_id=settings.managed_identity_client_id or None,
        ca_file=settings.blobs_ca_file,
    )
    if not _CONTAINER_NAME.fullmatch(address.container):
        raise ExchangeMisconfigured(
            f"BROADSIDE_BLOBS_CONTAINER={address.container}: a container's name is 3 to 63 small "
            "letters, digits and single hyphens"
        )
    check_way_in(address, "BROADSIDE_BLOBS", host="<account>.blob.core.windows.net")
    raw = BlobRaw(address, troubles=troubles)
    if address.connection_string:
        raw.open()  # which is to find it malformed now
    return raw


class BlobRaw:
    """One container of a storage account; its connections open at the first call.

    Needs the role *Storage Blob Data Contributor* on the container or its account. ``credential``
    stands in for ``DefaultAzureCredential`` and stays its giver's to close.
    """

    def __init__(
        self,
        address: BlobAddress,
        *,
        bounds: BlobBounds | None = None,
        credential: "AsyncTokenCredential | None" = None,
        troubles: TroubleLog | None = None,
    ) -> None:
        self._address = address
        self._bounds = bounds or BlobBounds()
        self._identity = Identity(credential)
        self._troubles = troubles or TroubleLog()
        self._client: ContainerClient | None = None
        self._let_in = False  # by the service, at least once

    async def save(self, name: RawName, text: bytes) -> None:
        packed = await asyncio.to_thread(gzip.compress, text, 6, mtime=0)

        async def upload(client: ContainerClient) -> None:
            try:
                await client.upload_blob(_path(name), packed, content_settings=_GZIP)
            except ResourceExistsError as error:
                if code_of(error) != "BlobAlreadyExists":
                    raise

        await self._call(upload)

    async def read(self, name: RawName) -> bytes | None:
        async def download(client: ContainerClient) -> bytes | None:
            try:
                return bytes(await (await client.download_blob(_path(name))).readall())
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
        async def delete(client: ContainerClient) -> int:
            names = [blob.name async for blob in client.list_blobs(name_starts_with=f"{folder}/")]
            for name in names:
                try:
                    await client.delete_blob(name)
                except ResourceNotFoundError as error:  # somebody else deletes too
                    if code_of(error) != "BlobNotFound":
                        raise
            return len(names)

        return await self._call(delete)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await self._identity.close()

    async def _call(self, work: Callable[[ContainerClient], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._bounds.call_s):
                done = await work(self.open())
        except (AzureError, OSError, TimeoutError) as error:
            explained = _explain(error, self._address)
            if isinstance(explained, ExchangeMisconfigured) and self._let_in:
                raise ExchangeUnavailable(str(explained)) from error
            raise explained from error
        self._let_in = True
        return done

    def open(self) -> ContainerClient:
        """The SDK's client, made when first asked for; it connects at its first call.

        Raises ExchangeMisconfigured.
        """
        if self._client is None:
            try:
                self._client = self._make_client()
            except ValueError as error:
                raise ExchangeMisconfigured(
                    "BROADSIDE_BLOBS_CONNECTION_STRING is not one: copy it whole from the portal"
                ) from error
        return self._client

    def _make_client(self) -> ContainerClient:
        address, bounds = self._address, self._bounds
        options: dict[str, Any] = {
            "retry_policy": ExponentialRetry(
                initial_backoff=bounds.backoff_s,
                increment_base=2,
                retry_total=bounds.retries_max_count,
                random_jitter_range=0,
            ),
            "transport": Transport(address, bounds.attempt_s, self._troubles, TroubleKind.RAW_AWAY),
        }
        if address.connection_string:
            return ContainerClient.from_connection_string(
                address.connection_string, address.container, **options
            )
        return ContainerClient(
            address.endpoint or "",
            address.container,
            credential=self._identity.credential(address.client_id),
            **options,
        )


def _path(name: RawName) -> str:
    return f"{name}.gz"


def _explain(error: Exception, address: BlobAddress) -> ExchangeError:
    """The SDK's error as ours: one line that names the container and, where known, the fix."""
    if code_of(error) == "ContainerNotFound":
        return ExchangeMisconfigured(
            f"{address} does not exist; create it, or name another in BROADSIDE_BLOBS_CONTAINER"
        )
    refusal = explain_entry(
        error, str(address), address, role=_ROLE, ca_setting="BROADSIDE_BLOBS_CA_FILE"
    )
    if refusal is not None:
        return refusal
    if is_final(error):
        return ExchangeError(f"{address}: the service refuses it: {said_by(error)}")
    return ExchangeUnavailable(f"{address} is not available: {said_by(error)}")
