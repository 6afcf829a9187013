"""Import every module of an installed wheel and load every command inside its environment."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import broadside
from broadside.coordinator.api import page_files
from broadside.coordinator.cli import load
from broadside.coordinator.cli.command_list import COMMANDS

LEFT_OUT = ("__main__", ".libbodies", ".libconnections", ".libgate")
# Packages of extras. Without the extra the import names it.
EXTRAS = {
    *("aiohttp", "azure", "jmespath", "mcp", "mcp_types", "opentelemetry"),
    *("pyarrow", "pysnmp", "requests", "xlsxwriter"),
}


def missing() -> Iterator[str]:
    """Import all modules, and yield the top-level package of each missing import."""
    for result in pkgutil.walk_packages(broadside.__path__, "broadside."):
        if result.name.endswith(LEFT_OUT):
            continue
        try:
            importlib.import_module(result.name)
        except ModuleNotFoundError as error:
            yield str(error.name).partition(".")[0]


lacking = set(missing())
for command in COMMANDS:
    load(command).get_short_help_str(1000)
pages = sorted(page_files.site().pages)
sys.stdout.write(f"lacking {sorted(lacking)} pages {pages}\n")
sys.exit(not lacking <= EXTRAS or pages != ["index.html", "report.html"])
