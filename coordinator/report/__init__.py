"""The report of a run that is over: one value, as HTML, PDF and JSON.

:mod:`coordinator.report.source` reads what is stored, :mod:`coordinator.report.build` makes the
value, :mod:`coordinator.report.render` writes the page.
"""

from coordinator.report.build import build
from coordinator.report.render import html
from coordinator.report.source import Source, gather
from coordinator.report.values import Report, Section, Table

__all__ = ["Report", "Section", "Source", "Table", "build", "gather", "html"]
