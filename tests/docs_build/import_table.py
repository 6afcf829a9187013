"""Table of ``docs/architecture.md`` with the imports that each folder may use."""

import re
from collections.abc import Iterable, Mapping

from tests.bench.bench_structure import imports, modules
from tests.docs_build.constants_page import DOCS, ROOT

PAGE = DOCS / "architecture.md"
# A row is for a folder, or for a module that is started and never imported.
_ROW = re.compile(r"^\| `([\w/]+)(/|\.py)` \| ([^|]+) \| ([^|]+) \|$", re.M)


def read_import_table() -> dict[str, tuple[str, ...]]:
    """Return the folders that each folder may import."""
    rows = _ROW.findall(PAGE.read_text("utf-8"))
    return {folder: tuple(re.findall(r"`([\w/]+)/`", allowed)) for folder, *_, allowed in rows}


def used_imports(folders: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the imported folders by folder, including imports in functions and for types.

    Args:
        folders: Folders of the table. A module belongs to the longest one that contains it.
    """
    known = modules(ROOT)
    used: dict[str, set[str]] = {folder: set() for folder in folders}
    for name, path in known.items():
        folder = _folder_of(name, used)
        others = imports(name, path, known, deferred=True)
        used[folder] |= {_folder_of(other, used) for other in others} - {folder}
    return used


def write_import_table() -> None:
    """Replace the last column of the table with the actual imports."""
    used = used_imports(read_import_table())
    order = list(used)

    def row(match: re.Match[str]) -> str:
        names = sorted(used[match[1]], key=order.index)
        allowed = ", ".join(f"`{name}/`" for name in names) or "-"
        return f"| `{match[1]}{match[2]}` | {match[3]} | {allowed} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text("utf-8")), encoding="utf-8")


def _folder_of(name: str, folders: Iterable[str]) -> str:
    path = name.removeprefix("broadside.").replace(".", "/")
    return max((folder for folder in folders if f"{path}/".startswith(f"{folder}/")), key=len)
