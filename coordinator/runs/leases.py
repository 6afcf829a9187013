"""Renewal of run leases, independent of other work of the coordinator.

Agents stop when the lease of their run expires. Renewal must not wait until a burst of a thousand
pairs is measured or 48,000 messages are queued.

The end of a lease is computed from the time at which the run was first held and from the monotonic
clock. A step of the wall clock therefore neither stops the agents nor disables the dead-man
function. Such a step is logged and stored with the run.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from broadside.coordinator.core.run_spec import Plan
from broadside.exchange.background import KeyedTaskRunner
from broadside.exchange.messages import Control, OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import EntityNotFound, ExchangeError
from broadside.exchange.records import Records

# Renewals within one lease. Three may fail.
RENEWALS_COUNT: Final = 4
# Time between two looks.
LOOK_S: Final = 0.5
# Difference of wall clock and monotonic clock between two looks that counts as a step.
STEP_S: Final = 2.0

log = logging.getLogger(__name__)


def first_lease_until(plan: Plan) -> datetime:
    """Return the time until which agents may work after the launch.

    For an unattended run this is its hard end.
    """
    spec, at = plan.spec, plan.created_at
    return spec.hard_end_at(at) or at + timedelta(seconds=spec.lease_s)


@dataclass(slots=True, kw_only=True)
class _Lease:
    """A run with a lease.

    Attributes:
        plan: The plan to use.
        began_at: Wall-clock time at which the lease was first held.
        began_s: Monotonic time of the same instant.
        renewed_s: Monotonic time of the last renewal, or None before the first.
    """

    plan: Plan
    began_at: datetime
    began_s: float
    renewed_s: float | None = None

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.plan.spec.lease_s)

    @property
    def pause(self) -> timedelta:
        """Time between two renewals, which is also the time limit of one renewal."""
        return self.lease / RENEWALS_COUNT


class Leases:
    """Leases that this coordinator renews."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], datetime],
        troubles: OutageLog | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._now = now
        self._monotonic_s = monotonic_s
        self._troubles = troubles or OutageLog()
        # Both clocks at the last look.
        self._looked: tuple[datetime, float] | None = None
        self._held: dict[str, _Lease] = {}
        self._lanes = KeyedTaskRunner()

    def hold(self, plan: Plan) -> None:
        """Renew the lease from now on. An unattended run has a hard end and no lease."""
        if not plan.spec.is_unattended:
            lease = _Lease(plan=plan, began_at=self._now(), began_s=self._monotonic_s())
            self._held.setdefault(plan.run_id, lease)

    def release(self, run_id: str) -> None:
        """Stop the renewal for a run."""
        self._held.pop(run_id, None)

    async def renew(self) -> None:
        """Renew all leases that are due, concurrently.

        An error of one run is logged, and the next look will try again. A row that does not answer
        delays neither the other runs nor the caller.
        """
        self._watch_clock()
        due = {
            run_id: partial(self._try, run_id, lease)
            for run_id, lease in self._held.items()
            if self._due(lease)
        }
        await self._lanes.go(due, LOOK_S)

    def _due(self, lease: _Lease) -> bool:
        pause_s = lease.pause.total_seconds()
        return lease.renewed_s is None or self._monotonic_s() - lease.renewed_s >= pause_s

    def _watch_clock(self) -> None:
        """Log and record a step of the wall clock since the last look."""
        now, now_s = self._now(), self._monotonic_s()
        before, self._looked = self._looked, (now, now_s)
        if before is None:
            return
        expected_at = before[0] + timedelta(seconds=now_s - before[1])
        step_s = (now - expected_at).total_seconds()
        if abs(step_s) >= STEP_S:
            self._troubles.record_interval(OutageKind.CLOCK_STEPPED, *sorted((expected_at, now)))
            log.warning(
                "the clock of this host was set by %+.1f s; start times use the new time, leases "
                "use the monotonic clock; check the time service",
                step_s,
                extra={"action": "clock"},
            )

    async def _try(self, run_id: str, lease: _Lease) -> None:
        extra = {"action": "lease", "run_id": run_id}
        try:
            async with asyncio.timeout(lease.pause.total_seconds()):
                await self._renew(run_id, lease)
        except TimeoutError:
            log.warning("lease of %s not renewed: the table does not respond", run_id, extra=extra)
        except ExchangeError as error:
            log.warning("lease of %s not renewed: %s", run_id, error, extra=extra)
        # If a row cannot be read, we should still renew the other leases.
        except Exception:
            log.exception("lease of %s not renewed", run_id, extra=extra)

    async def _renew(self, run_id: str, lease: _Lease) -> None:
        now_s = self._monotonic_s()
        until_at = lease.began_at + timedelta(seconds=now_s - lease.began_s) + lease.lease
        try:
            control: Control = await self._records.runs.renew_lease(run_id, until_at)
        # The run has been removed in the meantime.
        except EntityNotFound:
            self.release(run_id)
            return
        lease.renewed_s = now_s
        if control.cancelled_at is not None:
            self.release(run_id)

    async def renew_forever(self) -> None:
        """Renew leases until cancelled, and retry after outages."""
        try:
            while True:
                await self.renew()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._lanes.end()
