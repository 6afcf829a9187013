"""Unit tests for names, versions and licences of third-party components."""

import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from deploy.components import (
    Carried,
    ComponentSource,
    licence_names,
    licence_of,
    notices,
    read_go_licences,
    read_wheels,
)


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: old"], "MIT OR Apache-2.0"),
        (["License: BSD  3-Clause"], "BSD 3-Clause"),
        # Some packages use this field for the complete text.
        ([f"License: {'x' * 81}", "Classifier: License :: OSI Approved :: MIT License"],
         "MIT License"),
        (["License: UNKNOWN", "Classifier: License :: OSI Approved",
          "Classifier: License :: OSI Approved :: A", "Classifier: Topic :: B",
          "Classifier: License :: OSI Approved :: C"], "A OR C"),
        (["Name: x"], ""),
    ],
)  # fmt: skip
def test_licence_of_a_python_package(lines: list[str], licence: str) -> None:
    assert licence_of(message_from_string("\n".join(lines) + "\n")) == licence


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Files: *\nLicense: GPL-2+\n text\n\nLicense: MIT \n\nLicense: GPL-2+\n", "GPL-2+, MIT"),
        ("See /usr/share/common-licenses/GPL-2. And\n/usr/share/common-licenses/LGPL-2.1.",
         "GPL-2, LGPL-2.1"),
        ("No License: here", ""),
    ],
)  # fmt: skip
def test_licence_names_in_a_debian_copyright_file(text: str, names: str) -> None:
    assert licence_names(text) == names


def wheel(folder: Path, name: str, version: str, **files: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Name: {name}\nVersion: {version}\n")
        archive.writestr(f"{name}/licenses.py", "not a licence of the package")
        for file, text in files.items():
            archive.writestr(f"{info}/{file}", text)
    return path


def test_wheels_are_listed_by_name_without_our_own(tmp_path: Path) -> None:
    paths = [
        wheel(tmp_path, "zeta_lib", "1"),
        wheel(tmp_path, "broadside", "9"),
        wheel(tmp_path, "Alpha", "2", LICENSE="first", NOTICE="second", RECORD="no"),
    ]
    alpha, zeta = read_wheels(paths)
    assert (alpha.title, alpha.licence, alpha.texts) == (
        "alpha 2",
        "see its text",
        ["first", "second"],
    )
    assert (zeta.title, zeta.licence, zeta.texts) == ("zeta-lib 1", "", [])
    assert alpha.sha256 != zeta.sha256


def module(folder: Path, title: str, text: str | None) -> None:
    (folder / title).mkdir(parents=True)
    if text is not None:
        (folder / title / "LICENSE").write_text(text)


def test_go_modules_and_the_standard_library(tmp_path: Path) -> None:
    bsd = "x\nNeither the name\nof y"
    module(tmp_path, "golang.org/x/sys@v0.1.0", bsd)
    module(tmp_path, "github.com/a/b@v2.0.0", "Apache License\n  Version 2.0")
    module(tmp_path, "example.org/c@v3.0.0", "another text")
    module(tmp_path, "go@go1.22.1", None)
    found = {one.title: one for one in read_go_licences(tmp_path)}
    licences = {title: one.licence for title, one in found.items()}
    assert licences == {
        "golang.org/x/sys v0.1.0": "BSD-3-Clause",
        "github.com/a/b v2.0.0": "Apache-2.0",
        "example.org/c v3.0.0": "see its text",
        "go 1.22.1": "BSD-3-Clause",
    }
    # It has no file of its own, but the text of the Go Authors.
    assert found["go 1.22.1"].texts == [bsd]


def carried(kind: ComponentSource, name: str, *texts: str, source: str | None = None) -> Carried:
    return Carried(kind=kind, name=name, version="1", licence="MIT", texts=texts, source=source)


def test_notices_list_each_component_and_contain_each_text_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deploy.components.version_line", lambda: "version 0")
    text = notices(
        "the archive",
        [
            carried(ComponentSource.GO, "g"),
            carried(ComponentSource.PYTHON, "a", "the text\n"),
            carried(ComponentSource.PYTHON, "b", " the text", "other text"),
            carried(ComponentSource.DEBIAN, "d", "other text", source="d-src 1"),
        ],
    )
    assert text.startswith("Third-party notices of the archive, version 0\n")
    assert text.index("  a 1: MIT\n") < text.index("  d 1: MIT; sources: d-src 1\n")
    assert "  g 1: MIT; the package contains no licence text\n" in text
    assert text.count("the text\n") == text.count("other text\n") == 1
    assert "\na 1, b 1\n" in text
    assert "\nb 1, d 1\n" in text
