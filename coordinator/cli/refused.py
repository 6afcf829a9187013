"""What a coordinator refused, as a command tells it: by HTTP status, in one line."""


class ApiError(Exception):
    """The coordinator refused, or did not answer; the message is one line for a person."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # HTTP status; None: no answer
