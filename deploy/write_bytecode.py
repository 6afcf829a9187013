"""Imports every module of the package, so that Python writes the bytecode of all that they need.

setup.sh runs it after an installation. Compiling whole site-packages instead would take minutes.
"""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

for package in ("agent", "coordinator", "exchange"):
    for path in (ROOT / package).rglob("[a-z]*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        importlib.import_module(".".join(("broadside", *parts)))
