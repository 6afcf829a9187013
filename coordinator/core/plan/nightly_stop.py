"""Nightly stop of a range, after which no agent runs until a user scales it up again."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

_FORM: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d) (\S+)")


@dataclass(frozen=True, slots=True)
class NightlyStop:
    """Time of day at which the VMs of a range are stopped.

    Attributes:
        at: Local time.
        timezone: IANA name of the time zone.
    """

    at: time
    timezone: str

    @classmethod
    def parse(cls, text: str) -> "NightlyStop":
        """Return the stop in a text such as ``20:00 Europe/Berlin``.

        Raises:
            ValueError: The text has another form, or the time zone is unknown.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a time and a time zone, such as 20:00 Europe/Berlin")
        try:
            ZoneInfo(match[3])
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"time zone {match[3]!r} is unknown") from error
        return cls(time(int(match[1]), int(match[2])), match[3])

    def next_after(self, now: datetime) -> datetime:
        """Return the next stop after a time, in UTC."""
        zone = ZoneInfo(self.timezone)
        local = now.astimezone(zone)
        # A clock that is set forward can move a stop past this time.
        days = (datetime.combine(local.date() + timedelta(days=day), self.at, zone)
                for day in (-1, 0, 1, 2))  # fmt: skip
        return next(stop for day in days if (stop := day.astimezone(UTC)) > now)

    def describe(self, now: datetime, end_at: datetime) -> str:
        """Return when the range stops, and whether a run ends before it.

        Args:
            now: Launch time.
            end_at: Planned end of the last burst.
        """
        stop_at = self.next_after(now)
        text = (
            f"nightly stop: all VMs stop at {self.at:%H:%M} {self.timezone} "
            f"({stop_at:%Y-%m-%d %H:%MZ})"
        )
        margin_s = (stop_at - end_at).total_seconds()
        if margin_s > 0:
            return f"{text}, {_format_duration(margin_s)} after the last burst"
        early = _format_duration(-margin_s)
        return (
            f"{text}, {early} before the last burst ends; launch after it, use fewer bursts, or "
            "set auto_shutdown_time"
        )


def _format_duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
