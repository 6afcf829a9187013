"""No shipped module uses what came in a later 3.11 than Debian 12's 3.11.2.

``requires-python`` says 3.11 and tools know minor versions only. The list is every "Changed in
version 3.11.N" and "Added in version 3.11.N" of the library's documentation and changelog that adds
a name or an argument. ``tests/shipped`` runs the same modules on Debian 12's own Python.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("agent", "coordinator", "dashboards", "deploy", "exchange", "lab")
# Azure's image is Debian 13 alone, Python 3.13.
NEWER_ONLY = {ROOT / "deploy" / "azure" / "modules" / "boot" / "files" / "fetch.py"}
# Keyword arguments of calls to a function or method of this name.
ARGUMENTS = {
    "extract": "filter",  # tarfile, 3.11.4
    "extractall": "filter",
    "unpack_archive": "filter",  # shutil, 3.11.4
    "parseaddr": "strict",  # email.utils, 3.11.10
    "getaddresses": "strict",
}
NAMES = {
    *("data_filter", "tar_filter", "fully_trusted_filter", "extraction_filter"),  # tarfile, 3.11.4
    *("SetReparseDeferralEnabled", "GetReparseDeferralEnabled"),  # xml.parsers.expat, 3.11.9
    *("flush_reparse_deferral", "verify_generated_headers"),  # 3.11.9; email.policy, 3.11.10
}


def newer(tree: ast.AST) -> Iterator[str]:
    """Uses of what 3.11.2 does not have, as line and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if ARGUMENTS.get(called, "") in {keyword.arg for keyword in node.keywords}:
                yield f"{node.lineno}: {called}({ARGUMENTS[called]}=)"
        name = getattr(node, "attr", getattr(node, "id", None))
        if name in NAMES:
            yield f"{getattr(node, 'lineno', 0)}: {name}"


def test_shipped_modules_run_on_python_3_11_2() -> None:
    by_name = {
        str(path.relative_to(ROOT)): uses
        for folder in SHIPPED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "node_modules" not in path.parts and path not in NEWER_ONLY
        if (uses := list(newer(ast.parse(path.read_text()))))
    }
    assert not by_name


@pytest.mark.parametrize(
    "text",
    [
        "archive.extract(member, folder, filter='data')",
        "archive.extractall(folder, filter='data')",
        "tarfile.data_filter",
        "shutil.unpack_archive(a, b, filter='tar')",
        "parseaddr(text, strict=False)",
    ],
)
def test_each_of_them_is_found(text: str) -> None:
    assert list(newer(ast.parse(text)))


def test_what_was_always_there_is_left_alone() -> None:
    assert not list(newer(ast.parse("archive.extract(member, folder); archive.add(a, filter=f)")))
