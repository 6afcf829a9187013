"""Notification receivers from the settings."""

from collections.abc import Iterator

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.notices.announcer import Receiver
from broadside.exchange.installation import bring_extra


class NoticesMisconfigured(Exception):
    """The settings for a receiver are invalid. The message contains the setting and the fix."""


def open_receivers(settings: CoordinatorSettings) -> Iterator[Receiver]:
    """Yield the receivers from the settings.

    Raises:
        NoticesMisconfigured: A setting is missing or invalid.
    """
    if settings.webhook_url is not None:
        from broadside.coordinator.notices.webhook import Webhook

        if settings.webhook_secret is None:
            raise NoticesMisconfigured(
                "BROADSIDE_WEBHOOK_URL: set BROADSIDE_WEBHOOK_SECRET as well"
            )
        try:
            yield Webhook(settings.webhook_url, settings.webhook_secret.get_secret_value())
        except ValueError as error:
            raise NoticesMisconfigured(f"BROADSIDE_WEBHOOK_SECRET: {error}") from None
    if settings.otlp_endpoint is not None:
        try:
            from broadside.coordinator.notices.otlp import Otlp
        except ImportError:
            raise NoticesMisconfigured(
                "BROADSIDE_OTLP_ENDPOINT: OpenTelemetry's exporter is not installed; "
                f"{bring_extra('otlp')}"
            ) from None
        yield Otlp(settings.otlp_endpoint)
