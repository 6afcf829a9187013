"""Keeps the leases of runs that go on, whatever else their coordinator is busy with.

Agents stop when the lease lapses. So renewing it may not wait for a burst of a thousand pairs to be
measured, or for forty-eight thousand messages to be queued.

A run's lease is reckoned from the instant at which it was first held, run on by the monotonic
clock: a wall clock that is set back or forward meanwhile neither starves the agents nor leaves them
without a dead-man. Such a step is logged, and told with the run.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from broadside.coordinator.core.plan.spec import Plan
from broadside.exchange.background import Lanes
from broadside.exchange.messages import Control, TroubleKind
from broadside.exchange.ports import EntityNotFound, ExchangeError
from broadside.exchange.records import Records
from broadside.exchange.troubles import TroubleLog

RENEWALS_COUNT: Final = 4  # renewals within one lease: three may fail
LOOK_S: Final = 0.5  # s between looks at what is due
STEP_S: Final = 2.0  # s that the wall clock may part from the monotonic one between two looks

log = logging.getLogger(__name__)


def first_lease_until(plan: Plan) -> datetime:
    """Until when a run's agents may go on from its launch: the hard end of an unattended run."""
    spec, at = plan.spec, plan.created_at
    return spec.hard_end_at(at) or at + timedelta(seconds=spec.lease_s)


@dataclass(slots=True, kw_only=True)
class _Held:
    plan: Plan
    held_at: datetime
    held_s: float  # monotonic, of that instant
    renewed_s: float | None = None  # monotonic; None: never

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.plan.spec.lease_s)

    @property
    def pause(self) -> timedelta:
        """From one renewal to the next, and how long one may take."""
        return self.lease / RENEWALS_COUNT


class Leases:
    """The leases that this coordinator renews."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], datetime],
        troubles: TroubleLog | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._now = now
        self._monotonic_s = monotonic_s
        self._troubles = troubles or TroubleLog()
        self._looked: tuple[datetime, float] | None = None  # both clocks at the last look
        self._held: dict[str, _Held] = {}
        self._lanes = Lanes()

    def hold(self, plan: Plan) -> None:
        """Renew this run's lease from now on. An unattended run has a hard end instead."""
        if not plan.spec.is_unattended:
            held = _Held(plan=plan, held_at=self._now(), held_s=self._monotonic_s())
            self._held.setdefault(plan.run_id, held)

    def release(self, run_id: str) -> None:
        """Renew it no more."""
        self._held.pop(run_id, None)

    async def renew(self) -> None:
        """Renew what is due; what fails for one run is logged, and tried again at the next look.

        All at once: none waits behind one whose row does not answer, nor does the caller for long.
        """
        self._watch_clock()
        due = {
            run_id: partial(self._try, run_id, held)
            for run_id, held in self._held.items()
            if self._due(held)
        }
        await self._lanes.go(due, LOOK_S)

    def _due(self, held: _Held) -> bool:
        pause_s = held.pause.total_seconds()
        return held.renewed_s is None or self._monotonic_s() - held.renewed_s >= pause_s

    def _watch_clock(self) -> None:
        """Log and tell of a wall clock that was set since the last look."""
        now, now_s = self._now(), self._monotonic_s()
        before, self._looked = self._looked, (now, now_s)
        if before is None:
            return
        expected_at = before[0] + timedelta(seconds=now_s - before[1])
        step_s = (now - expected_at).total_seconds()
        if abs(step_s) >= STEP_S:
            self._troubles.spanned(TroubleKind.CLOCK_STEPPED, *sorted((expected_at, now)))
            log.warning(
                "this host's clock was set by %+.1f s; leases go by the monotonic one, what is "
                "due goes by the new time: check the time service",
                step_s,
                extra={"action": "clock"},
            )

    async def _try(self, run_id: str, held: _Held) -> None:
        say = {"action": "lease", "run_id": run_id}
        try:
            async with asyncio.timeout(held.pause.total_seconds()):
                await self._renew(run_id, held)
        except TimeoutError:
            log.warning("lease of %s not renewed: its row does not answer", run_id, extra=say)
        except ExchangeError as error:
            log.warning("lease of %s not renewed: %s", run_id, error, extra=say)
        except Exception:  # a row that cannot be read here must not cost the others their leases
            log.exception("lease of %s not renewed", run_id, extra=say)

    async def _renew(self, run_id: str, held: _Held) -> None:
        now_s = self._monotonic_s()
        until_at = held.held_at + timedelta(seconds=now_s - held.held_s) + held.lease
        try:
            control: Control = await self._records.runs.renew_lease(run_id, until_at)
        except EntityNotFound:  # pruned meanwhile
            self.release(run_id)
            return
        held.renewed_s = now_s
        if control.cancelled_at is not None:
            self.release(run_id)

    async def renew_forever(self) -> None:
        """Renew until cancelled; an outage is waited out."""
        try:
            while True:
                await self.renew()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._lanes.end()
