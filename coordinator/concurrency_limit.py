"""Concurrent request limit for each credential.

The limit is by credential and not by address, because many clients can share one address behind
NAT. A client that sends without pause does not slow down the others.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

RETRY_AFTER_S: Final = 1


class ConcurrencyExceeded(Exception):
    """The credential has reached its concurrent request limit. The message contains the limit."""


class ConcurrencyLimit:
    """Counter for the concurrent requests of each credential."""

    def __init__(
        self, max_count: int | None, of: str = "requests (BROADSIDE_REQUESTS_AT_ONCE)"
    ) -> None:
        """Create the counter.

        Args:
            max_count: Limit for one credential. If None, there is no limit.
            of: Name of the counted items to use in the error message.
        """
        self._max_count = max_count
        self._of = of
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def count(self, credential: str) -> Iterator[None]:
        """Count a request until its response is complete.

        Raises:
            ConcurrencyExceeded: This credential has reached its limit.
        """
        if self._max_count is not None and self._counts[credential] >= self._max_count:
            raise ConcurrencyExceeded(
                f"{self._max_count} {self._of} of this credential are in progress, "
                "which is the limit; wait for one to end"
            )
        self._counts[credential] += 1
        try:
            yield
        finally:
            self._counts[credential] -= 1
            if not self._counts[credential]:
                del self._counts[credential]
