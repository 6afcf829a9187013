"""A run's figures as tables in files: CSV, Excel, Parquet, JSON. Unknown is empty, never zero."""

from coordinator.exports.files import CannotWrite, Format, write
from coordinator.exports.tables import TABLES, Tables, make_tables

__all__ = ["TABLES", "CannotWrite", "Format", "Tables", "make_tables", "write"]
