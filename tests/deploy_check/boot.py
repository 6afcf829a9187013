"""First-boot configuration of a VM: renders ``modules/boot`` like Terraform, and checks it.

If Terraform is installed, it renders the module too, because the module needs no provider. A test
compares both texts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

# Allowed keys of a cloud-config: those in use, without more powerful ones.
TOP_LEVEL: Final = frozenset(
    {"package_update", "package_upgrade", "ssh_pwauth", "disable_root", "write_files", "runcmd"}
)
# Azure's limit, after base64.
CUSTOM_DATA_MAX_BYTES: Final = 65_535
_SECRET: Final = re.compile(
    r"SharedAccessKey|AccountKey=|\bsig=|BEGIN [A-Z ]*PRIVATE KEY|password\s*[:=]", re.I
)
_CONDITION: Final = re.compile(r'^%\{ if (\w+)(?: != "")? ~\}\n(.*?)^%\{ endif ~\}\n', re.M | re.S)
_TEMPLATE: Final = re.compile(r"\$\{\s*(?:indent\((\d+),\s*(\w+)\)|(\w+))\s*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """Variables of the boot module."""

    # The value is agent or coordinator.
    service: str
    environment: Mapping[str, str]
    capabilities: Sequence[str] = ()
    switches: str = ""
    telemetry: str = ""
    bundle_url: str = "https://example.blob.core.windows.net/agent/broadside-bundle-0.tar.gz"
    bundle_sha256: str = field(default="0" * 64)
    identity_client_id: str = "00000000-0000-0000-0000-000000000000"


def render_unit(folder: Path, boot: Boot) -> str:
    """Return the systemd unit from the boot module's folder."""
    text = (folder / "files" / f"broadside-{boot.service}.service").read_text("utf-8")
    return fill(text, {"capabilities": " ".join(boot.capabilities)})


def render(folder: Path, boot: Boot) -> str:
    """Return the cloud-config from the boot module's folder."""
    files = folder / "files"
    bundle = {
        "client_id": boot.identity_client_id,
        "service": boot.service,
        "sha256": boot.bundle_sha256,
        "url": boot.bundle_url,
    }
    return fill(
        (folder / "cloud-init.yaml.tftpl").read_text("utf-8"),
        {
            "bundle": json.dumps(bundle, separators=(",", ":")),
            "chrony": (files / "chrony.conf").read_text("utf-8").strip(),
            "environment": "\n".join(f"{k}={v}" for k, v in sorted(boot.environment.items())),
            "fetch": (files / "fetch.py").read_text("utf-8").strip(),
            "host_settings": (files / "host-settings.sh").read_text("utf-8").strip(),
            "host_unit": (files / "broadside-host.service").read_text("utf-8").strip(),
            "install_unit": (files / "broadside-install.service").read_text("utf-8").strip(),
            "service": boot.service,
            "switches": boot.switches.strip(),
            "telemetry": boot.telemetry.strip(),
            "sysctl": (files / "sysctl.conf").read_text("utf-8").strip(),
            "unit": render_unit(folder, boot).strip(),
        },
    )


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill the subset of Terraform's templates in use.

    It supports ``${name}``, ``${indent(n, name)}``, and lines from ``%{ if name ~}`` or
    ``%{ if name != "" ~}`` to ``%{ endif ~}``.

    Raises:
        KeyError: A name has no value.
    """

    def filled(hit: "re.Match[str]") -> str:
        value = values[hit[2] or hit[3]]
        return value.replace("\n", "\n" + " " * int(hit[1])) if hit[1] else value

    stored = _CONDITION.sub(lambda hit: hit[2] if values[hit[1]] else "", template)
    return _TEMPLATE.sub(filled, stored)


def faults(cloud_config: str) -> Iterator[str]:
    """Yield the faults of a rendered cloud-config, one per line."""
    if not cloud_config.startswith("#cloud-config\n"):
        yield "cloud-config: the first line must be #cloud-config"
    try:
        reported: Any = yaml.safe_load(cloud_config)
    except yaml.YAMLError as error:
        yield f"cloud-config: no YAML: {' '.join(str(error).split())}"
        return
    for key in sorted(reported.keys() - TOP_LEVEL):
        yield f"cloud-config: {key}: not among the keys that we use: {', '.join(sorted(TOP_LEVEL))}"
    if match := _SECRET.search(cloud_config):
        yield f"cloud-config: {match[0]!r}: custom data can be read by every process on the VM"
    if (size := (len(cloud_config.encode()) + 2) // 3 * 4) > CUSTOM_DATA_MAX_BYTES:
        yield f"cloud-config: {size} bytes in base64: at most {CUSTOM_DATA_MAX_BYTES}"
    if reported.get("package_update") or reported.get("package_upgrade"):
        yield "cloud-config: there is no package archive to update from"
    for item in reported.get("write_files", ()):
        if not re.fullmatch(r"0[0-7]{3}", str(item.get("permissions", ""))):
            yield f"cloud-config: {item.get('path')}: permissions must be said, in quotes"
