"""Keeps the leases of runs that go on, whatever else their coordinator is busy with.

Agents stop when the lease lapses. So renewing it may not wait for a burst of a thousand pairs to be
measured, or for forty-eight thousand messages to be queued.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from coordinator.core.plan.spec import Plan
from exchange.background import Lanes
from exchange.messages import Control
from exchange.ports import EntityNotFound, ExchangeError
from exchange.records import Records

RENEWALS_COUNT: Final = 4  # renewals within one lease: three may fail
LOOK_S: Final = 0.5  # s between looks at what is due

log = logging.getLogger(__name__)


def first_lease_until(plan: Plan) -> datetime:
    """Until when a run's agents may go on from its launch: the hard end of an unattended run."""
    spec, at = plan.spec, plan.created_at
    return spec.hard_end_at(at) or at + timedelta(seconds=spec.lease_s)


@dataclass(slots=True, kw_only=True)
class _Held:
    plan: Plan
    renewed_at: datetime | None = None

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.plan.spec.lease_s)

    @property
    def pause(self) -> timedelta:
        """From one renewal to the next, and how long one may take."""
        return self.lease / RENEWALS_COUNT


class Leases:
    """The leases that this coordinator renews."""

    def __init__(self, records: Records, now: Callable[[], datetime]) -> None:
        self._records = records
        self._now = now
        self._held: dict[str, _Held] = {}
        self._lanes = Lanes()

    def hold(self, plan: Plan) -> None:
        """Renew this run's lease from now on. An unattended run has a hard end instead."""
        if not plan.spec.is_unattended:
            self._held.setdefault(plan.run_id, _Held(plan=plan))

    def release(self, run_id: str) -> None:
        """Renew it no more."""
        self._held.pop(run_id, None)

    async def renew(self) -> None:
        """Renew what is due; what fails for one run is logged, and tried again at the next look.

        All at once: none waits behind one whose row does not answer, nor does the caller for long.
        """
        due = {
            run_id: partial(self._try, run_id, held)
            for run_id, held in self._held.items()
            if self._due(held)
        }
        await self._lanes.go(due, LOOK_S)

    def _due(self, held: _Held) -> bool:
        return held.renewed_at is None or self._now() - held.renewed_at >= held.pause

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
        now = self._now()
        try:
            control: Control = await self._records.runs.renew_lease(run_id, now + held.lease)
        except EntityNotFound:  # pruned meanwhile
            self.release(run_id)
            return
        held.renewed_at = now
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
