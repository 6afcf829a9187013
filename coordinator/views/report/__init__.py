"""The report of a run that is over: one value, as HTML, PDF and JSON.

``stored_source`` reads what is stored, ``build`` makes the value, ``render`` writes the page.
"""

from coordinator.views.report.build import build
from coordinator.views.report.document import Report, Section, Table
from coordinator.views.report.render import html
from coordinator.views.report.stored_source import Source, gather

__all__ = ["Report", "Section", "Source", "Table", "build", "gather", "html"]
