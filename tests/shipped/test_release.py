"""Test that two builds of a release in two folders are identical and have the right content."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.shipped.conftest import AddRow
from tests.shipped.debian_roots import roots_folder
from tests.shipped.image_build import BASE, MACHINE_AUTHORITIES, built_images

ROOT: Final = Path(__file__).parents[2]
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WHEEL: Final = f"broadside-{VERSION}-cp311-abi3-linux_x86_64.whl"
SDIST: Final = f"broadside-{VERSION}.tar.gz"
HOSTS: Final = f"broadside-hosts-{VERSION}.tar.gz"
BUNDLE: Final = f"broadside-bundle-{VERSION}.tar.gz"
IMAGE: Final = f"broadside-image-{VERSION}.oci.tar"
ARTEFACTS: Final = (WHEEL, SDIST, HOSTS, BUNDLE)
BUILD_TIMEOUT_S: Final = 1500
UMASKS: Final = (0o022, 0o077)
# Commit the current tree, so that both folders will have the same commit if there are local
# changes.
COMMIT: Final = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in {
        "NAME": "test",
        "EMAIL": "test@example.org",
        "DATE": "2026-10-01T12:00:00Z",
    }.items()
}
# The day of the commit in days since 1970.
COMMIT_DAY: Final = 20_727

pytestmark = [pytest.mark.live, pytest.mark.timeout(2 * BUILD_TIMEOUT_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Folder that ``make release`` wrote."""

    folder: Path
    commit: str
    printed: str


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Release]:
    """Build the release of one commit in two folders with two umasks."""
    # If this is not done, both builds would create it at the same time in the same place.
    subprocess.run(
        ["sh", "deploy/go.sh", "vegeta"],
        cwd=ROOT,
        env={**os.environ, "BROADSIDE_BRING_GO": "1"},
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    places = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("other") / "deeper"]
    parts = ("wheel", "sdist", "hosts", "azure")
    started = [
        (place, commit_of(place), start(place, umask, parts))
        for place, umask in zip(places, UMASKS, strict=True)
    ]
    return [ended(place, commit, process) for place, commit, process in started]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Release]:
    """Build the image of one commit in two folders with two umasks, one after the other."""
    built = []
    store = roots_folder() / "containers"
    # This creates the base image and locks the store until the end of the context.
    with built_images():
        environment = {
            "STORAGE_DRIVER": (store / "driver").read_text(),
            "CONTAINERS_STORAGE_CONF": str(store / "storage.conf"),
            # Images are not searched in any registry.
            "CONTAINERS_REGISTRIES_CONF": os.devnull,
        }
        for name, umask in zip(("c", "d"), UMASKS, strict=True):
            place = tmp_path_factory.mktemp(name) / "checkout"
            commit = commit_of(place)
            for authority in MACHINE_AUTHORITIES.glob("*.crt"):
                shutil.copyfile(authority, place / "deploy" / "docker" / "ca" / authority.name)
            process = start(place, umask, ("image",), "--base-image", BASE, **environment)
            built.append(ended(place, commit, process))
    return built


def commit_of(place: Path) -> str:
    """Copy this checkout's files, commit them and return the short commit id."""
    place.mkdir(parents=True, exist_ok=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    files = b"\0".join(name for name in names if name and os.path.lexists(ROOT / os.fsdecode(name)))
    pack = ["tar", "--create", "--no-recursion", "--null", "--files-from=-"]
    packed = subprocess.run(pack, cwd=ROOT, input=files, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract"], cwd=place, input=packed, check=True)
    for command in (
        ["git", "init", "-q", "."],
        ["git", "config", "core.excludesFile", os.devnull],
        ["git", "add", "--all"],
        ["git", "commit", "-q", "--no-verify", "-m", "the tree as it is"],
    ):
        subprocess.run(command, cwd=place, check=True, env={**os.environ, **COMMIT})
    (place / ".git" / "info").mkdir(exist_ok=True)
    (place / ".git" / "info" / "exclude").write_text(".tools\n")
    (place / ".tools").symlink_to(ROOT / ".tools")
    requested = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(requested, cwd=place, check=True, capture_output=True, text=True).stdout[
        :-1
    ]


def start(
    place: Path, umask: int, parts: Sequence[str], *options: str, **environment: str
) -> "subprocess.Popen[str]":
    only = [token for part in parts for token in ("--only", part)]
    return subprocess.Popen(
        [
            sys.executable, "-m", "deploy.release", "--output", "dist/out", "--python", "3.11",
            *only, *options,
        ],
        cwd=place,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment,
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def ended(place: Path, commit: str, process: "subprocess.Popen[str]") -> Release:
    printed, _ = process.communicate(timeout=BUILD_TIMEOUT_S)
    assert process.returncode == 0, printed
    return Release(folder=place / "dist" / "out", commit=commit, printed=printed)


def test_two_builds_of_a_commit_are_identical(
    releases: Sequence[Release], shipped_row: AddRow
) -> None:
    one, other = (
        {path.name: digest(path) for path in release.folder.iterdir()} for release in releases
    )
    assert {*ARTEFACTS} < one.keys()
    assert one == other
    shipped_row("release", "two folders, two umasks", f"{len(one)} files, the same bytes")


def test_checksums_match_all_files(releases: Sequence[Release]) -> None:
    folder = releases[0].folder
    listed = (folder / "SHA256SUMS").read_text().splitlines()
    names = {line.split("  ")[1] for line in listed}
    assert names == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)


@pytest.mark.parametrize("name", ARTEFACTS)
def test_bill_of_materials_is_valid_and_matches_its_file(
    releases: Sequence[Release], name: str
) -> None:
    path = releases[0].folder / name
    text = path.with_name(f"{name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    complete = json.loads(text)["metadata"]["component"]
    assert complete["version"] == VERSION
    assert complete["hashes"] == [{"alg": "SHA-256", "content": digest(path)}]
    assert complete["properties"] == [{"name": "broadside:commit", "value": releases[0].commit}]


@pytest.mark.parametrize("name", [HOSTS, BUNDLE])
def test_bill_of_materials_lists_all_third_party_files(
    releases: Sequence[Release], name: str
) -> None:
    """Test that each wheel and each Debian package of an archive is listed by hash."""
    carried = {
        hashlib.sha256(content).hexdigest()
        for path, content in members(releases[0].folder / name).items()
        if path.endswith((".whl", ".deb")) and not path.rpartition("/")[2].startswith("broadside-")
    }
    assert len(carried) > 20
    described = {
        digest["content"]
        for component in bill(releases[0].folder / name)["components"]
        for digest in component.get("hashes", ())
    }
    assert carried <= described


def test_bill_of_materials_of_wheel_lists_dependencies(
    releases: Sequence[Release],
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in project["dependencies"]}
    components = bill(releases[0].folder / WHEEL)["components"]
    assert names <= {component["name"] for component in components}


def test_all_artefacts_report_one_version(releases: Sequence[Release], tmp_path: Path) -> None:
    folder, commit = releases[0].folder, releases[0].commit
    line = f"broadside {VERSION} ({commit})"
    assert f"Broadside {VERSION} ({commit})" in releases[0].printed
    wheel = wheel_members((folder / WHEEL).read_bytes(), tmp_path / "wheel")
    assert wheel["broadside/exchange/commit.txt"] == f"{commit}\n".encode()
    assert version_of(tmp_path / "wheel") == line
    sdist = members(folder / SDIST)
    assert sdist[f"broadside-{VERSION}/COMMIT"] == f"{commit}\n".encode()
    assert f"\nVersion: {VERSION}\n".encode() in sdist[f"broadside-{VERSION}/PKG-INFO"]
    for name, top in ((HOSTS, "broadside-hosts/"), (BUNDLE, "")):
        archive = members(folder / name)
        assert archive[f"{top}VERSION"].decode() == f"{line}\n"
        # The wheel in the archives is identical to the wheel of the release.
        assert archive[f"{top}wheels/{WHEEL}"] == (folder / WHEEL).read_bytes()


def test_every_artefact_contains_the_licence(releases: Sequence[Release], tmp_path: Path) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    folder = releases[0].folder
    wheel = wheel_members((folder / WHEEL).read_bytes(), tmp_path)
    info = f"broadside-{VERSION}.dist-info"
    metadata = wheel[f"{info}/METADATA"].decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nAuthor: Broadside maintainers\n" in metadata
    assert wheel[f"{info}/licenses/LICENSE"] == licence
    assert wheel[f"{info}/licenses/THIRD-PARTY-NOTICES.md"]
    for name, top in ((SDIST, f"broadside-{VERSION}/"), (HOSTS, "broadside-hosts/"), (BUNDLE, "")):
        assert members(folder / name)[f"{top}LICENSE"] == licence, name


@pytest.mark.parametrize(("name", "top"), [(HOSTS, "broadside-hosts/"), (BUNDLE, "")])
def test_every_bundled_package_has_its_licence(
    releases: Sequence[Release], name: str, top: str
) -> None:
    """Test that each component is in NOTICES.txt with a licence and a licence text."""
    notices = members(releases[0].folder / name)[f"{top}NOTICES.txt"].decode()
    table, *texts = re.split(r"^={100}$", notices, flags=re.M)
    listed = dict(re.findall(r"^  (\S+ \S+): (.+)$", table, re.M))
    headings = " ".join(" ".join(texts[::2]).split())
    components = bill(releases[0].folder / name)["components"]
    assert len(components) > 20
    for component in components:
        title = f"{component['name']} {component['version']}"
        if group := component.get("group"):
            title = f"{group}/{title}"
        assert listed.get(title), title
        assert "no licence text" in listed[title] or title in headings, title
        assert component["licenses"], title


def test_bundled_programs_have_expected_licences(releases: Sequence[Release]) -> None:
    notices = members(releases[0].folder / BUNDLE)["NOTICES.txt"].decode()
    # This is the licence of iperf3, BSD-3-Clause.
    assert "Lawrence Berkeley National Laboratory" in notices
    # This is the licence of chrony and lftp.
    assert "GNU GENERAL PUBLIC LICENSE" in notices
    assert "vegeta" in notices
    assert "no licence text" not in notices.partition("=" * 100)[0]


@pytest.mark.needs_root
@pytest.mark.skipif(os.geteuid() != 0, reason="the base image's root is made as root")
def test_two_images_of_a_commit_are_identical(
    images: Sequence[Release], shipped_row: AddRow
) -> None:
    one, other = (
        {path.name: digest(path) for path in release.folder.iterdir()} for release in images
    )
    assert {*one} == {IMAGE, f"{IMAGE}.cdx.json", "SHA256SUMS"}
    assert one == other
    text = (images[0].folder / f"{IMAGE}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    carried = {component["name"] for component in json.loads(text)["components"]}
    assert {"iperf3", "chrony", "python3", "fastapi", "numpy"} <= carried
    layout = members(images[0].folder / IMAGE)
    (described,) = json.loads(layout["index.json"])["manifests"]
    manifest = blob(layout, described["digest"])
    settings = blob(layout, manifest["config"]["digest"])["config"]
    assert settings["Labels"]["org.opencontainers.image.revision"] == images[0].commit
    assert settings["Labels"]["org.opencontainers.image.version"] == VERSION
    assert settings["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    last = layout[f"blobs/{manifest['layers'][-1]['digest'].replace(':', '/')}"]
    with tarfile.open(fileobj=io.BytesIO(last)) as opened:
        names = opened.getnames()
        (commit,) = (name for name in names if name.endswith("broadside/exchange/commit.txt"))
        written = opened.extractfile(commit)
        assert written is not None
        assert written.read().decode().strip() == images[0].commit
    assert any(name.endswith(f"broadside-{VERSION}.dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith("usr/share/doc/iperf3/copyright") for name in names)
    # An account contains the day of its password change. There could be a midnight between two
    # builds.
    days = {
        int(line.split(":")[2])
        for line in file_of_layers(layout, manifest, "etc/shadow").splitlines()
        if line.split(":")[0] in {"_chrony", "broadside"}
    }
    assert days == {COMMIT_DAY}
    shipped_row("image", "two folders, two umasks", "OCI archive, the same bytes")


def file_of_layers(layout: Mapping[str, bytes], manifest: Any, name: str) -> str:
    """Return the text of a file from the last layer that contains it."""
    result = ""
    for layer in manifest["layers"]:
        packed = layout[f"blobs/{layer['digest'].replace(':', '/')}"]
        with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
            if name in opened.getnames() and (file := opened.extractfile(name)):
                result = file.read().decode()
    return result


def blob(layout: Mapping[str, bytes], name: str) -> Any:
    return json.loads(layout[f"blobs/{name.replace(':', '/')}"])


def bill(artefact: Path) -> Any:
    return json.loads(artefact.with_name(f"{artefact.name}.cdx.json").read_text())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def members(archive: Path) -> Mapping[str, bytes]:
    """Return the files of a .tar.gz by name."""
    by_name = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            if file := opened.extractfile(member) if member.isfile() else None:
                by_name[member.name] = file.read()
    return by_name


def wheel_members(content: bytes, place: Path) -> Mapping[str, bytes]:
    """Unpack a wheel to ``place`` and return its files by name."""
    place.mkdir(exist_ok=True)
    (place / "own.whl").write_bytes(content)
    with zipfile.ZipFile(place / "own.whl") as opened:
        opened.extractall(place)  # noqa: S202 - built just now
        return {name: opened.read(name) for name in opened.namelist()}


def version_of(place: Path) -> str:
    """Return the output of `broadside --version` of the package in ``place``."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", "from broadside.coordinator.cli import main; main()",
         "--version"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    return ran.stdout.strip()
