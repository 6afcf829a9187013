"""Finding for streams that were silent while other streams of the same pair were not."""

from collections.abc import Iterator, Sequence
from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.summary import Finding, SilentStream, warning
from broadside.exchange.messages import SILENT_STREAMS_MAX_COUNT

NAMED_COUNT: Final = 3


def silent_stream_findings(silent: Sequence[SilentStream]) -> Iterator[Finding]:
    """Yield a finding that lists the streams with the longest silence, if there are any."""
    if not silent:
        return
    worst = sorted(silent, key=lambda each: -each.duration_s)[:NAMED_COUNT]
    more = len(silent) - len(worst)
    least = "at least " if len(silent) == SILENT_STREAMS_MAX_COUNT else ""
    yield warning(
        id="silent-streams",
        weight=60,
        sentence="single streams carried nothing while the others of their pair did: "
        + "; ".join(map(_said, worst))
        + (f"; and {least}{more} more" if more else ""),
        next_step="look for these ports in the device's table of sessions and its log at "
        "those seconds: a session that was dropped, or a link of several that is down",
    )


def _said(each: SilentStream) -> str:
    which = "a stream" if each.client_port is None else f"the stream of port {each.client_port}"
    of = f", one of {each.streams_count}," if each.streams_count else ""
    return (
        f"{each.pair} {which}{of} from {each.from_at:%H:%M:%S} UTC for "
        f"{words.time(each.duration_s)}"
    )
