"""State of the VMs after their boot: instances of scale sets, and the rows of each VM.

No VM runs. Each VM has the rows that ``fetch.py`` and its agent would write. They depend on the
upload of the package in the VM's custom data.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import yaml

from tests.azure_emulator.azure_refusals import Resource, Store

# Host of Azure's serial consoles.
CONSOLES: Final = "rehearsal.blob.storage.azure.net"


@dataclass(kw_only=True)
class ServiceOutages:
    """VMs with planted faults, by host name.

    Attributes:
        failing: Errors that VMs publish.
        silent: VMs with rows that do not reach the table.
        dead: VMs with an agent that ended after it was ready.
    """

    failing: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)


def instances(scale_set: Resource) -> list[Resource]:
    """Return a scale set's instances, as Azure lists them."""
    prefix = scale_set["properties"]["virtualMachineProfile"]["osProfile"]["computerNamePrefix"]
    return [
        {
            "id": f"{scale_set['id']}/virtualMachines/{index}",
            "name": f"{scale_set['name']}_{index}",
            "instanceId": str(index),
            "location": scale_set["location"],
            "properties": {
                "latestModelApplied": True,
                "provisioningState": "Succeeded",
                "osProfile": {"computerName": f"{prefix}{index:06d}"},
            },
        }
        for index in range(scale_set["sku"]["capacity"])
    ]


def diagnostics(machine_id: str) -> dict[str, str]:
    """Return where a VM's screenshot and serial console are kept."""
    address = f"https://{CONSOLES}{machine_id}"
    return {
        "consoleScreenshotBlobUri": f"{address}.bmp",
        "serialConsoleLogBlobUri": f"{address}.log?sig=x",
    }


def rows(
    store: Store, blobs: Mapping[str, bytes], troubles: ServiceOutages
) -> list[dict[str, Any]]:
    """Return the rows of boot statuses and heartbeats."""
    results = []
    for _, host, status in _statuses(store, blobs, troubles):
        if host in troubles.silent:
            continue
        results.append({"PartitionKey": "boot", "RowKey": host, "json": json.dumps(status)})
        if status["stage"] == "ready" and host != "coordinator" and host not in troubles.dead:
            beat = {"agent_id": host, "state": "idle", "beat_at": _now(), "problem": None}
            key = f"{host.rstrip('0123456789')}.{host}"
            results.append({"PartitionKey": "presence", "RowKey": key, "json": json.dumps(beat)})
    return results


def console(store: Store, blobs: Mapping[str, bytes], troubles: ServiceOutages, path: str) -> bytes:
    """Return the output of a VM's serial console."""
    for machine_id, host, status in _statuses(store, blobs, troubles):
        if path.removesuffix(".log").lower() == machine_id.lower():
            line = f"[   42.0] fetch.py[511]: broadside-boot: {json.dumps(status)}\r\n"
            return f"Debian GNU/Linux 13 {host} ttyS0\r\n\r\n{line}{host} login: ".encode()
    return b""


def _statuses(
    store: Store, blobs: Mapping[str, bytes], troubles: ServiceOutages
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the resource id, host name and boot status of each VM."""
    for item in store.values():
        kind, reported = item["type"].lower(), item.get("properties") or {}
        if kind.endswith("/virtualmachinescalesets"):
            profile = reported["virtualMachineProfile"]
            for one in instances(item):
                host = one["properties"]["osProfile"]["computerName"]
                yield one["id"], host, _status(host, profile, blobs, troubles)
        elif kind.endswith("/virtualmachines") and "appliance" not in item["name"]:
            yield item["id"], "coordinator", _status("coordinator", reported, blobs, troubles)


def _status(
    host: str, profile: Resource, blobs: Mapping[str, bytes], troubles: ServiceOutages
) -> dict[str, str]:
    config = yaml.safe_load(base64.b64decode(profile["osProfile"]["customData"]))
    files = {item["path"]: item["content"] for item in config["write_files"]}
    url = json.loads(files["/etc/broadside/bundle.json"])["url"]
    stage, error = "ready", ""
    if url.removeprefix("https://").replace(".blob.core.windows.net", "") not in blobs:
        stage, error = "fetch", f"{url}: HTTP Error 404; the package is not uploaded yet"
    elif host in troubles.failing:
        stage, error = "install", troubles.failing[host]
    return {"stage": stage, "at": _now(), "error": error}


def _now() -> str:
    return datetime.now(UTC).isoformat()
