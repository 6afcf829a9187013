"""A run's figures as tables in files: CSV, Excel, Parquet, JSON. Unknown is empty, never zero."""

from broadside.coordinator.views.exports.run_tables import TABLES, Tables, make_tables
from broadside.coordinator.views.exports.table_files import CannotWrite, Format, write

__all__ = ["TABLES", "CannotWrite", "Format", "Tables", "make_tables", "write"]
