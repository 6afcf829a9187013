"""Search for wrong verdicts, which judges the worlds of `tests.worlds` and counts the errors.

Only this package imports both the engine and the worlds. `adapter.py` converts neutral recordings
to evidence.
"""
