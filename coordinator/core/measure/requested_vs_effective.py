"""Comparison of requested settings to settings that the engine reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadside.coordinator.core.measure.grid.align import Aligned
from broadside.coordinator.core.summary import Difference
from broadside.exchange.engines import tls_of
from broadside.exchange.engines.downloads import negotiated_name
from broadside.exchange.messages import DEFAULT_ENGINE, EngineReport, Traffic, pair_name

# Maximum size for TCP options (RFC 9293, section 3.1). For a live connection, the segment size is
# reported without options.
OPTIONS_MAX_BYTES: Final = 40
NAMED_COUNT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pair's requested setting, with the values that its engine reports.

    Attributes:
        field: A field name from ``Traffic``, or ``duration_s``.
        requested: Requested value, or ``None`` if the engine can choose.
        effective: Value per process, if it is reported.
    """

    field: str
    requested: Any
    effective: tuple[Any, ...]

    @property
    def differing(self) -> tuple[Any, ...]:
        """Reported values that do not match the request.

        If there was no requested value, there is no difference.
        """
        if self.requested is None:
            return ()
        matches = _MATCHES.get(self.field, lambda requested, used: bool(requested == used))
        return tuple(value for value in self.effective if not matches(self.requested, value))


# Settings that can match the request although they are not equal to it.
_MATCHES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "window_bytes": lambda requested, granted: granted >= requested,
    "mss_bytes": lambda requested, used: requested - OPTIONS_MAX_BYTES <= used <= requested,
    "options.tls": lambda requested, used: used.startswith(requested),
}


def settings(traffic: Traffic, duration_s: int, engine: EngineReport | None) -> tuple[Setting, ...]:
    """Return every setting that an engine can report.

    Each process is compared to the request. To compare the number of streams, all processes are
    added.

    Args:
        traffic: Requested settings, as they were sent to the engine.
        duration_s: Requested duration in seconds.
        engine: The engine's report, or ``None`` to get the request only.

    Returns:
        A setting per field.
    """
    parts = () if engine is None else engine.processes or (engine,)
    streams_count = None if engine is None else engine.streams_count

    def setting(field: str, requested: Any, effective: Sequence[Any] | None = None) -> Setting:
        if effective is None:
            effective = [getattr(part, field) for part in parts]
        known = tuple(value for value in effective if value is not None)
        return Setting(field=field, requested=requested, effective=known)

    tos = [part.tos for part in parts if part.tos is not None]
    # The other engines select the number of processes.
    processes_count = traffic.processes_count if traffic.engine == DEFAULT_ENGINE else None
    paced = traffic.stream_bits_per_second is not None
    return (
        setting("streams_count", traffic.streams_count, [streams_count]),
        setting("processes_count", processes_count, [len(parts) or None]),
        setting("engine", traffic.engine),
        setting("protocol", traffic.protocol.value),
        setting("direction", traffic.direction.value),
        setting("duration_s", duration_s),
        setting("omit_s", traffic.omit_s),
        setting("block_bytes", traffic.block_bytes),
        setting("stream_bits_per_second", traffic.stream_bits_per_second),
        setting("pacing", traffic.pacing.value if paced else None),
        setting("window_bytes", traffic.window_bytes),
        setting("mss_bytes", traffic.mss_bytes),
        setting(
            "congestion", traffic.congestion, [part.sender_congestion or None for part in parts]
        ),
        setting("dscp", traffic.dscp, [value // 4 for value in tos]),
    )


def tls_setting(traffic: Traffic, served: EngineReport | None) -> Setting:
    """Return the chosen TLS version and cipher suite, with those that the server negotiated.

    Args:
        traffic: Requested settings.
        served: The server's report, or ``None`` if there is no record.
    """
    version, _, cipher = tls_of(traffic).partition(":")
    measures = () if served is None else served.measures
    return Setting(
        field="options.tls",
        requested=negotiated_name(f"TLSv{version} {cipher}") if version else None,
        effective=tuple(
            measure.name.removesuffix("_count")
            for measure in measures
            if measure.name.startswith("tlsv")
        ),
    )


def find_setting_differences(
    traffic: Traffic, duration_s: int, aligned: Aligned
) -> tuple[Difference, ...]:
    """Return fields for which any engine reports another value than requested.

    Args:
        traffic: Requested settings as they were sent, after scaling.
        duration_s: Requested duration in seconds.
        aligned: Burst with its pairs' reports.

    Returns:
        A difference per field, with the value that is reported most often.
    """
    results: dict[str, list[tuple[int, str, str]]] = {}
    for pair in aligned.pairs:
        engine = pair.report.engine if pair.report is not None else None
        if engine is None or engine.error is not None:
            continue
        served = None if pair.server_test is None else pair.server_test.engine
        for item in (*settings(traffic, duration_s, engine), tls_setting(traffic, served)):
            if item.differing:
                did = ", ".join(dict.fromkeys(map(str, item.differing)))
                reported = (pair.pair_index, str(item.requested), did)
                results.setdefault(item.field, []).append(reported)
    return tuple(
        Difference(
            field=field,
            requested=reported[0][1],
            effective=max(
                sorted({did for *_, did in reported}), key=[did for *_, did in reported].count
            ),
            pairs_count=len(reported),
            pairs=tuple(pair_name(index) for index, *_ in reported[:NAMED_COUNT]),
        )
        for field, reported in sorted(results.items())
    )
