"""Round trips of probes as figures: of one phase, and of one path over a burst."""

from exchange.messages import Message


class PhaseLatency(Message):
    """Round trips of one phase."""

    sent_count: int
    answered_count: int
    loss_ratio: float | None = None  # of those sent; None: none was
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class PathLatency(Message):
    """One pair's, or the fleet's, round trips over a burst."""

    before: PhaseLatency
    during: PhaseLatency
    after: PhaseLatency
    buffer_delay_ratio: float | None = None
