"""Test that shipped modules can run on Python 3.11.2 in Debian 12.

``requires-python`` is set to 3.11, and tools only know minor versions. The list has all entries
"Changed in version 3.11.N" and "Added in version 3.11.N" from the library documentation and
changelog that add a name or an argument. ``tests/shipped`` is used to run the same modules on
Debian 12.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("agent", "coordinator", "dashboards", "deploy", "exchange", "lab")
# The Azure image is always Debian 13 with Python 3.13.
NEWER_ONLY = {ROOT / "deploy" / "azure" / "modules" / "boot" / "files" / "fetch.py"}
# Keyword arguments for calls to a function or method with this name.
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
    """Yield uses of features that are not available in 3.11.2, as line and name."""
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
def test_newer_feature_is_detected(text: str) -> None:
    assert list(newer(ast.parse(text)))


def test_older_features_are_allowed() -> None:
    assert not list(newer(ast.parse("archive.extract(member, folder); archive.add(a, filter=f)")))
