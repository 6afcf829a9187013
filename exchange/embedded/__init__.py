"""Storage backend for a single host, with a queue and tables in SQLite files."""
