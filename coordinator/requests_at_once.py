"""A limit for requests in progress, by credential: one that asks without end costs others nothing.

It counts by credential, not by address: behind an address translation many ask from one.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

RETRY_AFTER_S: Final = 1


class TooManyAtOnce(Exception):
    """A credential has as many requests in progress as it may; names the limit."""


class RequestsAtOnce:
    """Requests in progress of each credential."""

    def __init__(
        self, max_count: int | None, of: str = "requests (BROADSIDE_REQUESTS_AT_ONCE)"
    ) -> None:
        """``max_count``: of one credential; None: any number. ``of``: what is counted."""
        self._max_count = max_count
        self._of = of
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def one_of(self, credential: str) -> Iterator[None]:
        """Count a request until it is answered.

        Raises:
            TooManyAtOnce: There are as many in progress already.
        """
        if self._max_count is not None and self._counts[credential] >= self._max_count:
            raise TooManyAtOnce(
                f"{self._max_count} {self._of} of this credential are in progress, as many as may "
                "be; wait for one to end"
            )
        self._counts[credential] += 1
        try:
            yield
        finally:
            self._counts[credential] -= 1
            if not self._counts[credential]:
                del self._counts[credential]
