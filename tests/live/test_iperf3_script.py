"""Test the output and the files of deploy/iperf3.sh without a package mirror."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

SCRIPT = Path(__file__).parents[2] / "deploy" / "iperf3.sh"


class Checkout:
    """Checkout with only the script, and a PATH to use stubs for iperf3 and apt-get."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "deploy").mkdir()
        self.script = shutil.copy(SCRIPT, root / "deploy")
        self.bin = root / "bin"
        self.bin.mkdir()
        self.put(self.bin / "apt-get", 'echo "E: no mirror in tests"; exit 100')

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def have(self, path: Path, version: str) -> None:
        self.put(path, f"echo 'iperf {version} (cJSON 1.7.15)'")

    def run(self) -> tuple[int, str]:
        env = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        ran = subprocess.run(["sh", self.script], env=env, capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_uses_new_iperf3_of_the_system(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.17")
    assert checkout.run() == (0, "iperf3: using the system's 3.17\n")
    assert not (checkout.root / ".tools").exists()


def test_does_not_download_existing_iperf3_again(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.12")
    checkout.have(checkout.root / ".tools" / "iperf3" / "bin" / "iperf3", "3.18")
    assert checkout.run() == (0, "iperf3: using 3.18 in .tools/iperf3\n")


def test_without_mirror_uses_old_iperf3(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.12")
    code, text = checkout.run()
    assert code == 0
    assert text.startswith("iperf3: using the system's 3.12: ")
    assert text.count("\n") == 1
    assert list((checkout.root / ".tools").glob("*")) == []


@pytest.mark.parametrize("version", ["3.7", "2.1.8"])
def test_without_usable_iperf3_prints_a_fix(checkout: Checkout, version: str) -> None:
    checkout.have(checkout.bin / "iperf3", version)
    code, text = checkout.run()
    assert code == 1
    assert text.startswith("iperf3: no usable one: ")
    assert text.endswith("run: apt-get install iperf3 (3.9 or newer)\n")
