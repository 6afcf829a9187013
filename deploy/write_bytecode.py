"""Import all modules of the package, so that Python writes the bytecode they need.

This includes the modules of all dependencies that are used. It is run by setup.sh after an
installation. It would take minutes to compile all of site-packages.
"""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

for package in ("agent", "coordinator", "exchange"):
    for path in (ROOT / package).rglob("[a-z]*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        importlib.import_module(".".join(("broadside", *parts)))
