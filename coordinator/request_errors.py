"""Errors that the API and the command line report to the user.

Any module below the API can raise them. Each class defines the HTTP status, the title of its
problem document and the template of the detail. The docstring is the meaning on the problem's page.
"""

from typing import ClassVar


class RequestError(Exception):
    """The request cannot be fulfilled.

    Attributes:
        status: HTTP status code.
        title: Short name. The type of the problem document is derived from it.
        detail: Template of the message for the user. ``{}`` is the error text.
    """

    status: ClassVar[int]
    title: ClassVar[str]
    detail: ClassVar[str]

    def __init_subclass__(cls, *, status: int = 0, title: str = "", detail: str = "{}") -> None:
        # Without arguments, a subclass is the same problem as its base.
        if title:
            cls.status, cls.title, cls.detail = status, title, detail


class UnknownRun(
    RequestError,
    status=404,
    title="Unknown run",
    detail="run {}: no such run; list them at /v1/runs",
):
    """There is no run with this id. List the runs at `/v1/runs`."""


class UnknownAgent(
    RequestError,
    status=404,
    title="Unknown agent",
    detail="agent {}: no heartbeat is stored; list the agents at /v1/agents",
):
    """There is no agent with this id, or it signed off. List the agents at `/v1/agents`."""


class UnknownScenario(
    RequestError,
    status=404,
    title="Unknown scenario",
    detail="scenario {}: no such scenario; list them at /v1/scenarios",
):
    """There is no built-in scenario with this name. List them at `/v1/scenarios`."""


class RunNotOver(
    RequestError,
    status=409,
    title="Run not finished",
    detail="run {0} is not finished yet; read its status at /v1/runs/{0}",
):
    """The run is in progress and has no summary yet. Read its status at `/v1/runs/{run_id}`."""


class RunIsOver(
    RequestError,
    status=409,
    title="Run finished",
    detail="run {0} is finished; read its verdict at /v1/runs/{0}/summary",
):
    """The run has a verdict, so it cannot be stopped."""


class NoRaw(RequestError, status=404, title="No raw output"):
    """No raw output of the traffic engine is stored for this request. The detail has the reason."""


class KeyReused(RequestError, status=409, title="Idempotency key reused"):
    """The idempotency key was used with another request. Use a new key for a new run."""


class LaunchInProgress(RequestError, status=409, title="Launch in progress"):
    """Another request with this idempotency key is in progress. Retry in a minute."""


class UnknownBurst(RequestError, status=404, title="Unknown burst"):
    """The run has no burst with this number."""

    def __init__(self, run_id: str, burst_index: int, count: int) -> None:
        super().__init__(f"burst {burst_index + 1}: not in run {run_id}, which has {count}")


class BurstNotOver(RequestError, status=409, title="Burst not finished"):
    """The burst is not measured yet. Retry when it is finished."""


class UnknownPair(RequestError, status=404, title="Unknown pair"):
    """The run does not contain the pair."""


class UnknownSchedule(
    RequestError,
    status=404,
    title="Unknown schedule",
    detail="schedule {}: no such schedule; list them at /v1/schedules",
):
    """There is no schedule with this name. List the schedules at `/v1/schedules`."""


class NameTaken(RequestError, status=409, title="Name taken"):
    """A schedule with this name exists. Choose another name, or change the schedule with PUT."""


class OtherName(RequestError, status=409, title="Name mismatch"):
    """The name in the body differs from the name in the address."""


class UnknownStudy(
    RequestError,
    status=404,
    title="Unknown study",
    detail="study {}: no such study; list them at /v1/studies",
):
    """There is no study with this id. List the studies at `/v1/studies`."""


class BadStudy(RequestError, status=422, title="Bad study"):
    """The study cannot be executed. The detail names the field, its value and the fix."""


class NotHere(BadStudy, status=409, title="Not configured"):
    """The study needs a setting that this coordinator does not have. The detail names it."""


class NoCounter(RequestError, status=404, title="No device counter"):
    """No device counter was configured for this run, so there is no reconciliation."""


class TooManyViewers(RequestError, status=503, title="Too many viewers"):
    """The limit of event streams is reached. Close a live page, or retry later."""


class EmptyGroup(RequestError, status=422, title="Empty group"):
    """A group of the comparison contains no burst."""


class NoChart(RequestError, status=404, title="No such chart"):
    """The chart cannot be drawn from the data of this run. The detail has the reason."""


class UnknownDeadLetter(
    RequestError,
    status=404,
    title="Unknown dead letter",
    detail="dead letter {}: no such message; list them at /v1/deadletters",
):
    """There is no dead letter with this number. List them at `/v1/deadletters`."""


class CannotResend(RequestError, status=409, title="Cannot resend"):
    """The job in this dead letter cannot produce a measurement any more. Launch the run again."""


class BadGrouping(RequestError, status=422, title="Bad grouping"):
    """Runs cannot be grouped by this name. The detail lists the possible ones."""


class NotReady(RequestError, status=503, title="Not ready"):
    """The coordinator cannot work at the moment. Its log has the details."""
