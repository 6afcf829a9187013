"""Run results as tables in CSV, Excel, Parquet or JSON files. Unknown values are empty."""

from broadside.coordinator.views.exports.run_tables import TABLES, Tables, make_tables
from broadside.coordinator.views.exports.table_files import CannotWrite, Format, write

__all__ = ["TABLES", "CannotWrite", "Format", "Tables", "make_tables", "write"]
