"""Configuration of polled sources that request one URL, with an optional secret in a header."""

from pathlib import Path
from urllib.parse import urlsplit

from broadside.coordinator.device.telemetry.polling import PolledEntry
from broadside.coordinator.device.telemetry.source import Secret, TelemetryError
from broadside.exchange.http.bounded import may_carry_secret


class UrlRequestEntry(PolledEntry):
    """Entry of a source that requests one URL."""

    url: str
    # Header with the secret, such as ``Bearer ...``.
    header: str = "Authorization"
    header_value: Secret | None = None
    ca_file: Path | None = None

    def check_url(self) -> str:
        """Return the URL without its query, for messages.

        Raises:
            TelemetryError: The URL is invalid.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise TelemetryError(
                f"telemetry {self.device}: url: write https://host/path, without a password in it"
            )
        return f"{parts.scheme}://{parts.hostname}{parts.path}"

    def secret_headers(self) -> dict[str, str]:
        """Return the header with the secret, or no header.

        Raises:
            TelemetryError: The secret cannot be read, or would be sent without encryption.
        """
        if self.header_value is None:
            return {}
        if not may_carry_secret(self.url):
            raise TelemetryError(f"telemetry {self.device}: url: a secret is sent over https only")
        return {self.header: self.header_value.read(self.device)}
