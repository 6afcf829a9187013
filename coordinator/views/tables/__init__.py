"""Tables of a run as files, from one list of columns."""

from broadside.coordinator.views.tables.formats import CannotWrite, Format, write
from broadside.coordinator.views.tables.run_tables import TABLES, Tables, make_tables

__all__ = ["TABLES", "CannotWrite", "Format", "Tables", "make_tables", "write"]
