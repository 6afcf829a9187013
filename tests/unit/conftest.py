"""Common setup for all unit tests."""

import MLRsearch  # noqa: F401 - imported early, because class creation inspects the stack
