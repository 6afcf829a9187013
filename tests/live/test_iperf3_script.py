"""Test the output and the files of deploy/iperf3.sh without a package mirror."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

SCRIPT = Path(__file__).parents[2] / "deploy" / "iperf3.sh"


class Checkout:
    """Checkout with only the script, and a PATH with replacements of iperf3 and apt-get."""

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


def test_a_new_system_iperf3_is_enough(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.17")
    assert checkout.run() == (0, "iperf3: using the system's 3.17\n")
    assert not (checkout.root / ".tools").exists()


def test_what_is_there_is_not_brought_again(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.12")
    checkout.have(checkout.root / ".tools" / "iperf3" / "bin" / "iperf3", "3.18")
    assert checkout.run() == (0, "iperf3: using 3.18 in .tools/iperf3\n")


def test_without_a_mirror_the_old_one_serves_and_nothing_is_left(checkout: Checkout) -> None:
    checkout.have(checkout.bin / "iperf3", "3.12")
    code, text = checkout.run()
    assert code == 0
    assert text.startswith("iperf3: using the system's 3.12: ")
    assert text.count("\n") == 1
    assert list((checkout.root / ".tools").glob("*")) == []


@pytest.mark.parametrize("version", ["3.7", "2.1.8"])
def test_with_none_that_serves_it_says_the_fix(checkout: Checkout, version: str) -> None:
    checkout.have(checkout.bin / "iperf3", version)
    code, text = checkout.run()
    assert code == 1
    assert text.startswith("iperf3: no usable one: ")
    assert text.endswith("run: apt-get install iperf3 (3.9 or newer)\n")
