"""Common setup for all unit tests."""

import MLRsearch  # noqa: F401 - its classes walk the stack as they are made: early, while it is cheap
