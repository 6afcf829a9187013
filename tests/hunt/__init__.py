"""Independent hunt: judges the worlds of `tests.worlds` with the engine and counts what is wrong.

Only this package knows both sides. `adapter.py` turns neutral recordings into evidence.
"""
