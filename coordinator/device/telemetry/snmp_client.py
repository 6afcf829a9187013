"""SNMP v2c and v3 client that reads scalars and tables as numbers.

``pysnmp`` is imported for the first request. The import takes 0.23 s of CPU time, which only a
coordinator with such a source needs.
"""

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from broadside.coordinator.device.telemetry.polling import PolledEntry
from broadside.coordinator.device.telemetry.source import Secret, TelemetryError

if TYPE_CHECKING:
    from pysnmp.hlapi.v3arch.asyncio import SnmpEngine

# Maximum rows of one table, for example of cores or interfaces.
ROWS_MAX_COUNT: Final = 512
# OIDs per request, so that the response fits in one UDP datagram.
GET_MAX_COUNT: Final = 20
# Rows per request.
BULK_COUNT: Final = 25
ATTEMPT_S: Final = 1.0
RETRIES_COUNT: Final = 1
# ``sysUpTime`` in hundredths of a second.
UP: Final = "1.3.6.1.2.1.1.3.0"

# Authentication protocols (RFC 3414, RFC 7860).
_AUTH: Final = {
    "md5": "USM_AUTH_HMAC96_MD5",
    "sha": "USM_AUTH_HMAC96_SHA",
    "sha256": "USM_AUTH_HMAC192_SHA256",
    "sha384": "USM_AUTH_HMAC256_SHA384",
    "sha512": "USM_AUTH_HMAC384_SHA512",
}
# Privacy protocols (RFC 3826). With md5 or sha, the digest is too short for the longer keys. Cisco
# and net-snmp use different ways to extend it. Cisco uses draft-reeder-snmpv3-usm-3desede.
_PRIVACY: Final = {
    "aes": "USM_PRIV_CFB128_AES",
    "aes192": "USM_PRIV_CFB192_AES",
    "aes256": "USM_PRIV_CFB256_AES",
    "aes192-blumenthal": "USM_PRIV_CFB192_AES_BLUMENTHAL",
    "aes256-blumenthal": "USM_PRIV_CFB256_AES_BLUMENTHAL",
}


class SnmpEntry(PolledEntry):
    """Address and credentials of a device. Secrets are in files or environment variables.

    Attributes:
        address: Host, ``host:port`` or ``[v6]:port``.
        interfaces: Interfaces by name, for counters of the IF-MIB.
        interface_counters: ``auto`` uses 64-bit counters where available.
    """

    address: str
    version: Literal["2c", "3"] = "2c"
    community: Secret | None = None
    user: str | None = None
    auth: Literal["none", "md5", "sha", "sha256", "sha384", "sha512"] = "sha256"
    auth_key: Secret | None = None
    privacy: Literal[
        "none", "aes", "aes192", "aes256", "aes192-blumenthal", "aes256-blumenthal"
    ] = "aes"
    privacy_key: Secret | None = None
    profile: str | None = None
    profiles_file: Path | None = None
    interfaces: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    interface_counters: Literal["auto", "32"] = "auto"


class SnmpClient:
    """SNMP client of a device.

    Attributes:
        truncated: Table columns that were not read completely.
    """

    def __init__(self, entry: SnmpEntry) -> None:
        """Check the entry and read the secrets.

        Raises:
            TelemetryError: The entry is incomplete or a secret cannot be read.
            ModuleNotFoundError: ``pysnmp`` is not installed.
        """
        if importlib.util.find_spec("pysnmp") is None:
            raise ModuleNotFoundError("pysnmp", name="pysnmp")
        self._address, self._port = _endpoint(entry.device, entry.address)
        self._entry = entry
        self._secrets: dict[str, str] = {}
        if entry.version == "2c":
            self._read_secret("community", entry.community)
        else:
            if not entry.user:
                raise TelemetryError(
                    f"telemetry {entry.device}: user: not set; version 3 needs one"
                )
            if entry.auth != "none":
                self._read_secret("auth_key", entry.auth_key)
            if entry.privacy != "none":
                self._read_secret("privacy_key", entry.privacy_key)
        self._engine: SnmpEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._access: tuple[Any, ...] = ()
        self.truncated: list[str] = []

    def __str__(self) -> str:
        return f"snmp v{self._entry.version} {self._address}:{self._port}"

    def _read_secret(self, field: str, secret: Secret | None) -> None:
        if secret is None:
            raise TelemetryError(
                f"telemetry {self._entry.device}: {field}: not set; write {field} = {{ env = "
                '"BROADSIDE_..." } or { file = "..." }'
            )
        self._secrets[field] = secret.read(self._entry.device)

    def close(self) -> None:
        """Close the socket. The next request will open a new one."""
        if self._engine is not None:
            self._engine.close_dispatcher()
            self._engine = None

    async def get(self, oids: Sequence[str]) -> dict[str, float | None]:
        """Return scalars by OID, with ``None`` for a value that the device does not have."""
        by_name: dict[str, float | None] = {}
        for start in range(0, len(oids), GET_MAX_COUNT):
            part = oids[start : start + GET_MAX_COUNT]
            for name, value in await self._request("get_cmd", part):
                by_name[name] = number_of(value)
        return {oid: by_name.get(oid) for oid in oids}

    async def table(self, oids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the columns of a table, with the value for each row by its index.

        If a column could not be read completely, it will be appended to ``truncated``.
        """
        columns: dict[str, dict[str, Any]] = {}
        for oid in oids:
            rows: dict[str, Any] = {}
            last = oid
            while len(rows) < ROWS_MAX_COUNT:
                bound = await self._request("bulk_cmd", [last], 0, BULK_COUNT)
                inside = [(name, value) for name, value in bound if name.startswith(f"{oid}.")]
                fresh = [(n, v) for n, v in inside if n[len(oid) + 1 :] not in rows]
                rows |= {name[len(oid) + 1 :]: value for name, value in fresh}
                if not fresh or len(inside) < len(bound):
                    break
                last = fresh[-1][0]
            # The table exceeds the limit, or the agent started again at the first row.
            if len(rows) >= ROWS_MAX_COUNT or (inside and not fresh):
                self.truncated.append(oid)
            columns[oid] = rows
        return columns

    async def _request(
        self, command: str, oids: Sequence[str], *options: int
    ) -> list[tuple[str, Any]]:
        """Send a request. Raises TelemetryError with the library's message, without a secret."""
        # The import takes a third of a second. A thread lets other tasks renew their leases.
        snmp = await asyncio.to_thread(importlib.import_module, "pysnmp.hlapi.v3arch.asyncio")
        from pysnmp.error import PySnmpError

        try:
            credential, target, context = await self._open(snmp)
            objects = [snmp.ObjectType(snmp.ObjectIdentity(oid)) for oid in oids]
            failure, status, index, bound = await getattr(snmp, command)(
                self._engine, credential, target, context, *options, *objects, lookupMib=False
            )
        except (PySnmpError, OSError) as error:
            raise TelemetryError(
                f"{self}: {type(error).__name__}; see /docs/telemetry.html of the coordinator"
            ) from None
        if failure is not None:
            if self._entry.version == "3":
                # The device may have restarted. A new engine discovers its boots and time (USM)
                # again.
                self.close()
            raise TelemetryError(f"{self}: {_failure_text(failure, self._entry)}")
        if status:
            at = int(index) - 1
            raise TelemetryError(
                f"{self}: {status.prettyPrint()} at {oids[at] if 0 <= at < len(oids) else '?'}"
            )
        ends = (snmp.EndOfMibView,)
        return [
            (".".join(map(str, name)), value)
            for name, value in bound
            if not isinstance(value, ends)
        ]

    async def _open(self, snmp: Any) -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        if self._engine is not None and self._loop is loop:
            return self._access
        self._engine, self._loop = snmp.SnmpEngine(), loop
        v6 = ":" in self._address
        kind = snmp.Udp6TransportTarget if v6 else snmp.UdpTransportTarget
        target = await kind.create(
            (self._address, self._port), timeout=ATTEMPT_S, retries=RETRIES_COUNT
        )
        self._access = (self._credential(snmp), target, snmp.ContextData())
        return self._access

    def _credential(self, snmp: Any) -> Any:
        entry = self._entry
        if entry.version == "2c":
            return snmp.CommunityData(self._secrets["community"], mpModel=1)
        keys: dict[str, Any] = {}
        if entry.auth != "none":
            keys["authKey"] = self._secrets["auth_key"]
            keys["authProtocol"] = getattr(snmp, _AUTH[entry.auth])
        if entry.privacy != "none":
            keys["privKey"] = self._secrets["privacy_key"]
            keys["privProtocol"] = getattr(snmp, _PRIVACY[entry.privacy])
        return snmp.UsmUserData(entry.user, **keys)


def _endpoint(device: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not address.startswith("[")):
        host, port = address, "161"
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise TelemetryError(
            f"telemetry {device}: address {address!r}: write host, host:port or [v6]:port"
        )
    return host, int(port)


def number_of(value: Any) -> float | None:
    """Return an SNMP value as a number, or ``None`` if it is missing or not a number."""
    if type(value).__name__ in ("NoSuchObject", "NoSuchInstance", "Null", "EndOfMibView"):
        return None
    try:
        return float(value)
    # Pass-through agents and some vendors send numbers as text.
    except (TypeError, ValueError):
        try:
            return float(bytes(value).decode())
        except (TypeError, ValueError):
            return None


def _failure_text(failure: object, entry: SnmpEntry) -> str:
    """Return the library's message for a failure, with advice for a timeout."""
    text = " ".join(str(failure).split())[:200]
    if "timeout" not in text.lower():
        return text
    wrong = "community"
    if entry.version == "3":
        wrong = f"privacy key, or another privacy than {entry.privacy},"
        if entry.auth in ("md5", "sha") and len(entry.privacy) > len("aes"):
            other = entry.privacy.partition("-")[0]
            other += "-blumenthal" * (other == entry.privacy)
            wrong += f" such as {other},"
    return (
        f"no answer ({text}); check that its SNMP agent runs and allows this host. It does not "
        f"answer a wrong {wrong.rstrip(',')}"
    )
