"""Error of a coordinator operation, and the time limit of its request."""

from typing import Final

# Limit for responses that read many rows.
REQUEST_TIMEOUT_S: Final = 600.0


class ApiError(Exception):
    """The coordinator rejected the request or did not respond. The message is one line.

    Attributes:
        status: HTTP status code. None if there was no response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
