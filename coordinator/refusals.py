"""Exceptions for requests that cannot be fulfilled, with a one-line message or an id.

They can be raised in any module below the API, and the API converts each to a problem document.
They are in a separate module so that error handlers do not import the modules that raise them.
"""


class UnknownRun(Exception):
    """There is no run of that id."""


class RunNotOver(Exception):
    """The run is still in progress, and the request needs its summary."""


class RunIsOver(Exception):
    """The run has its verdict: there is nothing left to stop."""


class NoRaw(Exception):
    """No engine's raw output is kept for what was asked; says why."""


class KeyReused(Exception):
    """An idempotency key came with another request than the first time."""


class LaunchUnderWay(Exception):
    """Another request with the same key has not ended yet."""


class NotThere(Exception):
    """The requested burst data is not stored. The message is one line to show to the user."""


class UnknownBurst(NotThere):
    """The run has no burst of that index, which is said as people count, too."""

    def __init__(self, run_id: str, burst_index: int, count: int) -> None:
        burst = f"burst {burst_index + 1} (burst_index {burst_index})"
        super().__init__(f"{burst}: not in run {run_id}, which has {count}")


class BurstNotOver(NotThere):
    """Nothing is stored of the burst yet."""


class UnknownSchedule(Exception):
    """There is no schedule of that name."""


class OtherName(Exception):
    """The schedule sent is not the one that the address names."""


class NameTaken(Exception):
    """There is a schedule of that name already."""


class UnknownStudy(Exception):
    """There is no study of that id."""


class BadStudy(Exception):
    """A study cannot be carried out; the message names the field, the value and the fix."""


class NotHere(BadStudy):
    """A study needs what this coordinator was not given; the message names it and the fix."""


class NoLedger(Exception):
    """There was no firewall's ledger to hold the fleet's against."""


class UnknownPair(Exception):
    """The run has no such pair."""


class TooManyViewers(Exception):
    """This coordinator serves as many event streams as it may."""


class EmptyGroup(Exception):
    """A group has no burst; the message is one line for a person."""


class NoChart(Exception):
    """A chart cannot be drawn of this run; the message is one line for a person."""
