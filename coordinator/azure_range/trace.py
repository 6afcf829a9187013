"""Result of a walk: one row for each need of a VM, with its hops."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from broadside.coordinator.azure_range.resources import Resources


class HopState(IntEnum):
    """Result of a hop or row, in the order of severity."""

    OK = 0
    # The resource is not visible here, because another owner has it.
    UNKNOWN = 1
    # Another owner has to change a resource (see the Terraform output ``proposal``).
    OWNER = 2
    BROKEN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step on the way to an endpoint, such as ``route`` or ``role``."""

    name: str
    state: HopState
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """Need of a VM with its hops. The walk ends at the first hop that is not OK."""

    role: str
    need: str
    hops: Sequence[Hop]

    @property
    def state(self) -> HopState:
        return max((hop.state for hop in self.hops), default=HopState.OK)

    def __str__(self) -> str:
        last = self.hops[-1]
        if self.state is HopState.OK:
            return f"{self.role}: {self.need}: ok"
        return f"{self.role}: {self.need}: {last.name}: {last.text}"


class Stop(Exception):
    """End of a row at a hop that is not OK."""


@dataclass(kw_only=True)
class Trace:
    """Hops of the current row."""

    resources: Resources
    hops: list[Hop] = field(default_factory=list)

    def ok(self, name: str, text: str) -> None:
        """Add a hop that works.

        Args:
            name: Name of the hop.
            text: What the hop uses, such as a rule or an address.
        """
        self.hops.append(Hop(name=name, state=HopState.OK, text=text))

    def fail(self, name: str, text: str, at: str = "") -> Stop:
        """Add a hop that does not work.

        Args:
            name: Name of the hop.
            text: Measured value, and the expected one.
            at: Id of the resource that has to change. Without it, the range has to change.

        Returns:
            The exception to raise, which ends the row.
        """
        state = HopState.BROKEN
        if at and self.resources.is_foreign(at):
            state = HopState.OWNER if at.lower() in self.resources.by_id else HopState.UNKNOWN
        self.hops.append(Hop(name=name, state=state, text=text))
        return Stop()


def follow(resources: Resources, role: str, need: str, steps: Callable[[Trace], None]) -> TraceRow:
    """Return the row of a need.

    Args:
        resources: All visible resources.
        role: Who needs the path, such as ``client``.
        need: What is needed, as the row names it.
        steps: Function that adds the hops. It may raise :class:`Stop` at the first failed hop.

    Returns:
        The row. A missing or malformed value is its last hop, and is broken.
    """
    trace = Trace(resources=resources)
    try:
        steps(trace)
    except Stop:
        pass
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        text = f"a value is missing or invalid: {error!r}"
        trace.hops.append(Hop(name="given", state=HopState.BROKEN, text=text))
    return TraceRow(role=role, need=need, hops=tuple(trace.hops))


_WORDS = {
    HopState.OK: "ok",
    HopState.UNKNOWN: "unknown",
    HopState.OWNER: "owner",
    HopState.BROKEN: "BROKEN",
}


def table(rows: Sequence[TraceRow]) -> Iterator[str]:
    """Yield the lines of the table: VM role, need, result and hops, and then the counts.

    A row that is not OK has the text of its last hop only, after the names of those before.
    """
    role, need = (max(len(str(getattr(row, name))) for row in rows) for name in ("role", "need"))
    yield f"{'VM':{role}}  {'need':{need}}  result   hops"
    for row in rows:
        texts = [f"{hop.name}: {hop.text}" for hop in row.hops]
        if row.state is not HopState.OK:
            texts = [*(hop.name for hop in row.hops[:-1]), texts[-1]]
        yield f"{row.role:{role}}  {row.need:{need}}  {_WORDS[row.state]:7}  {' > '.join(texts)}"
    counts = {state: sum(row.state is state for row in rows) for state in HopState}
    yield ", ".join(f"{counts[state]} {_WORDS[state]}" for state in HopState)
