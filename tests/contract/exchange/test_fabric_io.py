"""Tests for fabric that need processes, sockets or real time."""

import subprocess
import sys

import pytest

from broadside.exchange.fabric import FabricSettings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FabricSettings.model_fields:
        monkeypatch.delenv(f"BROADSIDE_{name.upper()}", raising=False)


BLOBS = "blobs_endpoint='https://site.blob.core.windows.net'"


@pytest.mark.parametrize(("settings", "package"), [("", "azure"), (BLOBS, "azure.storage.blob")])
def test_unused_packages_are_not_imported(settings: str, package: str) -> None:
    script = (
        "import sys; from broadside.exchange.fabric import FabricSettings, open_fabric;"
        f"open_fabric(FabricSettings(fabric='embedded', {settings}));"
        f"print(*(name for name in sys.modules if f'{{name}}.'.startswith('{package}.')))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
