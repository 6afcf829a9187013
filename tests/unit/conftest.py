"""What holds for every unit test."""

import MLRsearch  # noqa: F401 - its classes walk the stack as they are made: early, while it is cheap
