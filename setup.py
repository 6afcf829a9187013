"""Writes the commit into what setuptools builds; all else is in pyproject.toml.

A wheel carries it as ``broadside/exchange/commit.txt``, a source distribution as ``COMMIT``.
"""

import os
import runpy
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
WRITTEN = "COMMIT"


def commit() -> str:
    """Return the commit to write; empty where it is not known.

    ``BROADSIDE_COMMIT`` is for builds whose sources come without git, such as an image's.
    """
    known = os.environ.get("BROADSIDE_COMMIT")
    module = runpy.run_path(str(ROOT / "src" / "broadside" / "exchange" / "version.py"))
    return known or module["read_commit"](ROOT, ROOT / WRITTEN) or ""


class BuildPackages(build_py):
    """Build command that stores the commit id beside the packages."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout asks git
            place = Path(self.build_lib) / "broadside" / "exchange" / "commit.txt"
            place.write_text(f"{commit()}\n", "ascii")


class BuildSources(sdist):
    """Source distribution command that stores the commit id in the archive."""

    def make_release_tree(self, base_dir: str, files: Any) -> None:
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / WRITTEN).write_text(f"{commit()}\n", "ascii")


setup(cmdclass={"build_py": BuildPackages, "sdist": BuildSources})
