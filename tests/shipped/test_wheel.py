"""Test the wheel on Debian 12 and 13 with the newest and the oldest dependencies.

The environments have the system's Python (3.11 and 3.13), a current folder with files named like
modules, and no checkout. The tests should be able to run ``broadside --version``, all modules,
``serve``, ``agent`` and ``launch`` to a verdict, ``doctor``, ``up`` and ``demo``.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from deploy.build_tools import UV, build_sdist, build_wheel, run
from tests.shipped.conftest import AddRow
from tests.shipped.debian_roots import BOOKWORM, HOST_PACKAGES, ROOT, TRIXIE, debian_root

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(900)]

# The Debian packages that a user of the wheel installs in addition to Python and chrony.
PACKAGES: Final = (*HOST_PACKAGES, "iperf3", "nftables")
EXTRAS: Final = "[azure,mcp,otlp,tables,telemetry]"
HERE: Final = Path(__file__).parent
SYSTEMS: Final = {BOOKWORM: "Debian 12, Python 3.11", TRIXIE: "Debian 13, Python 3.13"}


@pytest.fixture(scope="session")
def wheel(build_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Build the wheel of this checkout."""

    def build(path: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            build_wheel(path, Path(work))

    folder = build_once("wheel", build)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.parametrize(
    ("suite", "resolution", "extras", "with_demo"),
    [
        (BOOKWORM, "highest", "", True),
        (BOOKWORM, "lowest-direct", EXTRAS, False),
        (TRIXIE, "highest", EXTRAS, False),
        (TRIXIE, "lowest-direct", "", True),
    ],
)
def test_installed_wheel_works(
    suite: str,
    resolution: str,
    extras: str,
    with_demo: bool,
    wheel: Path,
    tmp_path: Path,
    shipped_row: AddRow,
) -> None:
    root = debian_root(suite, PACKAGES)
    files, cache = tmp_path / "files", Path.home() / ".cache" / "uv"
    files.mkdir()
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("wheel_user.sh", "same_name.py", "import_modules.py"):
        shutil.copy(HERE / name, files)
    shutil.copy(wheel, files)
    stored = {
        name: value for name, value in os.environ.items() if not name.startswith("BROADSIDE_")
    }
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh"),
            *(HERE / "wheel_host.sh", root, files, UV, cache),
            *("install", resolution, f"broadside{extras} @ file:///files/{wheel.name}"),
            "demo" if with_demo else "no-demo",
        ],
        cwd=tmp_path,
        env=stored,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    steps = dict(re.findall(r"^== (\w+)[^\n]*\n(.*?)(?=^== |\Z)", done.stdout, re.M | re.S))
    assert "done" in steps
    assert "verdict: pass" in steps["launch"]
    assert "Traceback" not in done.stdout
    assert "+ terraform" not in steps["up"]
    assert "--bundle FILE" in steps["up"]
    assert "lacking []" in steps["modules"] or not extras
    if with_demo:
        assert re.search(r"verdict: (pass|inconclusive)", steps["demo"])
        # Both pairs were measured for the whole burst, and the lab's firewall counted them.
        assert re.search(r"2/2 +100.0 %", steps["demo"]), steps["demo"]
    ran = "install, serve, agents, launch, doctor, up" + ", demo" * with_demo
    shipped_row("wheel", f"{SYSTEMS[suite]}, {resolution}{extras and ', all extras'}", ran)


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of a wheel.

    Compiled files are empty because they depend on the build folder.
    """
    with zipfile.ZipFile(path) as opened:
        return {
            name: b"" if name.endswith((".so", "/RECORD")) else opened.read(name)
            for name in opened.namelist()
        }


def test_source_distribution_builds_same_wheel(
    wheel: Path, tmp_path: Path, shipped_row: AddRow
) -> None:
    with tempfile.TemporaryDirectory() as work:
        sdist = build_sdist(tmp_path, Path(work))
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    [source] = (tmp_path / "unpacked").iterdir()
    assert not [path for path in source.rglob("*") if path.is_symlink()]
    options = ["-q", "--wheel", "--no-build-isolation", "--python", sys.executable]
    run([UV, "build", *options, "--out-dir", tmp_path / "again", source])
    [again] = (tmp_path / "again").glob("*.whl")
    ours, theirs = contents(wheel), contents(again)
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} == set()
    assert again.name == wheel.name
    # The wheel supports every Python from 3.11 on.
    assert wheel.name.endswith("-cp311-abi3-linux_x86_64.whl")
    shipped_row("sdist", "this machine", "build, wheel from it, compared")


def test_wheel_contains_only_the_package(wheel: Path) -> None:
    stored = contents(wheel)
    tops = {name.partition("/")[0] for name in stored}
    assert tops == {"broadside", next(top for top in tops if top.endswith(".dist-info"))}
    assert {
        f"broadside/agent/lib{name}.abi3.so" for name in ("gate", "connections")
    } <= stored.keys()
    web = {f"broadside/dashboards/web/{path.name}" for path in (ROOT / "dashboards/web").iterdir()}
    assert len(web) > 15
    assert web <= stored.keys()
    site = {f"broadside/dashboards/docs_site/{name}" for name in ("index.html", "js/base.js")}
    assert site <= stored.keys()
    terraform = {name for name in stored if name.startswith("broadside/deploy/")}
    assert "broadside/deploy/azure/modules/boot/cloud-init.yaml.tftpl" in terraform
    assert not [name for name in terraform if "/tests/" in name or "tfstate" in name]
