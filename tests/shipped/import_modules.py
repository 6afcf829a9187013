"""Imports every module of an installed wheel, and loads every command, inside its environment."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import broadside
from broadside.coordinator.api import page_files
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import COMMANDS

# Those of dashboards are made from these files in a checkout, with packages for developers.
LEFT_OUT = ("__main__", ".libgate", ".generate_boards", ".generate_workbook")
# What an extra brings; without it the import says so.
EXTRAS = {
    *("aiohttp", "azure", "jmespath", "kaleido", "mcp", "mcp_types", "opentelemetry"),
    *("plotly", "pyarrow", "pysnmp", "requests", "xlsxwriter"),
}


def missing() -> Iterator[str]:
    """Import all modules; yield the top package of each that an import lacks."""
    for found in pkgutil.walk_packages(broadside.__path__, "broadside."):
        if found.name.endswith(LEFT_OUT):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            yield str(error.name).partition(".")[0]


lacking = set(missing())
for command in COMMANDS:
    load(command).get_short_help_str(1000)
pages = sorted(page_files.site().pages)
sys.stdout.write(f"lacking {sorted(lacking)} pages {pages}\n")
sys.exit(not lacking <= EXTRAS or pages != ["index.html", "report.html"])
