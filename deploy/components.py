"""Third-party components in an archive, with names, versions and licences from the files.

``write_notices`` adds them to the archive as ``NOTICES.txt``. The same list is used in
deploy/sbom.py to create a bill of materials.
"""

import email
import io
import re
import tarfile
import textwrap
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from enum import StrEnum
from pathlib import Path
from typing import Final

from deploy.build_tools import NOTICES, run_bytes, sha256, version_line
from deploy.debian_packages import DebianPackage

_LICENCE_FILE: Final = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice)[^/]*$")
# Maximum number of characters. We need a limit, because some packages use this field for the
# complete licence text.
_NAME_MAX: Final = 80
_COMMON: Final = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])")
_RULE: Final = "=" * 100


class ComponentSource(StrEnum):
    """Source of a component."""

    PYTHON = "python"
    DEBIAN = "debian"
    GO = "go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Component in an archive.

    Attributes:
        kind: Source of the component.
        name: Name of the package.
        version: Version of the package.
        licence: SPDX expression if there is one, or the text used by the component.
        texts: Licence texts.
        sha256: SHA-256 of the file in the archive, or None.
        source: For a Debian package, name and version of its source package.
    """

    kind: ComponentSource
    name: str
    version: str
    licence: str
    texts: Sequence[str]
    sha256: str | None = None
    source: str | None = None

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def read_wheels(wheels: Iterable[Path]) -> Sequence[Carried]:
    """Return the components of some wheels, without the wheel of Broadside."""
    results = [_read_wheel(path) for path in wheels]
    others = (item for item in results if item.name != "broadside")
    # There can be a wheel of the same package for each Python version.
    return sorted(others, key=lambda item: (item.name, item.version, item.sha256))


def _read_wheel(path: Path) -> Carried:
    with zipfile.ZipFile(path) as wheel:
        inner = [name for name in wheel.namelist() if ".dist-info/" in name]
        (metadata,) = (name for name in inner if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(wheel.read(metadata))
        texts = [
            wheel.read(name).decode("utf-8", "replace")
            for name in sorted(inner)
            if _LICENCE_FILE.search(name)
        ]
    name = str(fields["Name"]).lower().replace("_", "-")
    return Carried(
        kind=ComponentSource.PYTHON,
        name=name,
        version=str(fields["Version"]),
        licence=licence_of(fields) or ("see its text" if texts else ""),
        texts=texts,
        sha256=sha256(path),
    )


def licence_of(fields: Message) -> str:
    """Return the licence in the metadata of a Python package, or an empty string."""
    if expression := fields["License-Expression"]:
        return str(expression)
    text = " ".join(str(fields["License"] or "").split())
    if text and text != "UNKNOWN" and len(text) <= _NAME_MAX:
        return text
    classifiers = fields.get_all("Classifier") or ()
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    return " OR ".join(dict.fromkeys(name for name in names if name != "OSI Approved"))


def read_debs(
    packages: Sequence[DebianPackage], folder: Path, common: Mapping[str, str]
) -> Sequence[Carried]:
    """Return the components of some Debian packages.

    Args:
        packages: Packages in the lock.
        folder: Folder with their files.
        common: Texts in /usr/share/common-licenses by name. You need them if a copyright file
            refers to them.
    """
    notices = {package.name: _copyright(folder / package.file_name) for package in packages}
    return [_read_deb(package, folder, notices, common) for package in packages]


def read_common_licences(base_files: Path) -> Mapping[str, str]:
    """Return the texts in /usr/share/common-licenses by name, from the package base-files."""
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    with _members(base_files) as members:
        for member in members:
            folder, _, name = member.name.rpartition("/")
            if folder != "./usr/share/common-licenses":
                continue
            if member.issym():
                links[name] = member.linkname
            elif member.isfile():
                texts[name] = _text(members, member)
    return texts | {name: texts[target] for name, target in links.items() if target in texts}


def _read_deb(
    package: DebianPackage,
    folder: Path,
    notices: Mapping[str, tuple[str, str]],
    common: Mapping[str, str],
) -> Carried:
    path = folder / package.file_name
    text, instead = notices[package.name]
    # The folder of the documentation can be a link to another package from the same source.
    text = text or notices.get(instead, ("", ""))[0]
    referred = dict.fromkeys(_COMMON.findall(text))
    parts = run_bytes(["dpkg-deb", "--show", "--showformat=${source:Package} ${source:Version}",
                       path]).decode()  # fmt: skip
    return Carried(
        kind=ComponentSource.DEBIAN,
        name=package.name,
        version=package.version,
        licence=licence_names(text) or ("see its text" if text else ""),
        texts=[text, *(common[name] for name in referred if name in common)] if text else [],
        sha256=package.sha256,
        source=parts,
    )


def licence_names(text: str) -> str:
    """Return the licences named in a Debian copyright file, or an empty string."""
    names = re.findall(r"(?m)^License:[ \t]*(\S.*?)[ \t]*$", text) or _COMMON.findall(text)
    return ", ".join(dict.fromkeys(names))


def _copyright(deb: Path) -> tuple[str, str]:
    """Return the copyright file of a package, or the name of the package that has it."""
    instead = ""
    with _members(deb) as members:
        for member in members:
            path = member.name.removeprefix("./usr/share/doc/")
            if path.endswith("/copyright") and member.isfile() and path.count("/") == 1:
                return _text(members, member), ""
            if member.issym() and path.count("/") == 0:
                instead = Path(member.linkname).name
    return "", instead


def _members(deb: Path) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(run_bytes(["dpkg-deb", "--fsys-tarfile", deb])))


def _text(members: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = members.extractfile(member)
    return file.read().decode("utf-8", "replace") if file else ""


def read_go_licences(licences: Path) -> Sequence[Carried]:
    """Return the Go modules of a program, using the files written by deploy/go.sh."""
    results = [_read_module(path, licences) for path in _module_folders(licences)]
    (local,) = {text for item in results if item.name == "golang.org/x/sys" for text in item.texts}
    # The Go standard library has the licence of the Go Authors, as their modules have.
    return [
        Carried(kind=item.kind, name=item.name, version=item.version,
                licence=item.licence or "BSD-3-Clause", texts=item.texts or [local])
        if item.name == "go" else item
        for item in results
    ]  # fmt: skip


def _module_folders(licences: Path) -> Iterator[Path]:
    return (path for path in sorted(licences.rglob("*@*")) if path.is_dir())


def _read_module(folder: Path, licences: Path) -> Carried:
    name, _, version = str(folder.relative_to(licences)).rpartition("@")
    texts = [path.read_text("utf-8", "replace") for path in sorted(folder.iterdir())]
    return Carried(
        kind=ComponentSource.GO,
        name=name,
        version=version.removeprefix("go"),
        licence=_licence_of_text(texts[0]) if texts else "",
        texts=texts,
    )


def _licence_of_text(text: str) -> str:
    """Return the SPDX id for a text, if it is one of the few licences used by Go modules."""
    parts = " ".join(text.split())
    for licence, sign in {
        "Apache-2.0": "Apache License Version 2.0",
        "BSD-3-Clause": "Neither the name of",
        "BSD-2-Clause": "Redistributions in binary form",
        "MIT": "Permission is hereby granted, free of charge",
    }.items():
        if sign in parts:
            return licence
    return "see its text"


def write_notices(folder: Path, title: str, carried: Sequence[Carried]) -> None:
    """Write ``NOTICES.txt``, which has a list of all components and each licence text once.

    Args:
        folder: Folder to write to.
        title: Name of the archive.
        carried: Components in the archive.
    """
    (folder / NOTICES).write_text(notices(title, carried), "utf-8")


def notices(title: str, carried: Sequence[Carried]) -> str:
    """Return the text of ``NOTICES.txt``.

    Args:
        title: Name of the archive.
        carried: Components in the archive.
    """
    lines = [
        f"Third-party notices of {title}, {version_line()}",
        "",
        *textwrap.wrap(
            "Broadside itself has the Apache License 2.0, see LICENSE. This archive also contains "
            "the components below, each under its own licence. Their texts follow the list.",
            width=100,
        ),
        "",
    ]
    for kind in ComponentSource:
        local = [item for item in carried if item.kind is kind]
        if not local:
            continue
        lines += [_HEADINGS[kind], ""]
        for item in {item.title: item for item in local}.values():
            sources = f"; sources: {item.source}" if item.source else ""
            remark = "" if item.texts else "; the package contains no licence text"
            lines.append(f"  {item.title}: {item.licence}{sources}{remark}")
        lines.append("")
    holders: dict[str, dict[str, None]] = {}
    for item in carried:
        for text in item.texts:
            holders.setdefault(text.strip(), {})[item.title] = None
    for text, names in holders.items():
        lines += [
            _RULE,
            *textwrap.wrap(", ".join(names), width=100, break_on_hyphens=False),
            _RULE,
            "",
            text,
            "",
        ]
    return "\n".join(lines)


_HEADINGS: Final = {
    ComponentSource.PYTHON: "Python packages",
    ComponentSource.DEBIAN: "Debian packages, unchanged; the Debian archive has their sources",
    ComponentSource.GO: "Go modules in the program vegeta",
}
