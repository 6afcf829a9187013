"""The fabric of one host: a queue and a table on SQLite."""
