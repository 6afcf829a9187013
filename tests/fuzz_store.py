"""Data of the fuzzed API: two runs, a study, a schedule and a dead letter."""

import secrets
from datetime import timedelta
from typing import Final

from broadside.coordinator.api.examples import REQUESTS
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.studies.study import Study, StudyRequest
from broadside.exchange.fabric import Fabric
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Outgoing
from broadside.exchange.records.collection import Collection
from tests.synthetic_runs import store_run

# Run ids.
OVER: Final = "fuzz-over"
OPEN: Final = "fuzz-open"
STUDY: Final = "fuzz-study"
_HOUR: Final = timedelta(hours=1)


async def store(fabric: Fabric) -> None:
    """Store the data again, because pruning may have deleted the runs."""
    if await fabric.records.read_run(OVER) is None:
        await store_run(fabric, OVER, labels={"idps": "on"})
    if await fabric.records.read_run(OPEN) is None:
        await store_run(fabric, OPEN, bursts_over=1)
    now = utc_now()
    requested = StudyRequest.model_validate(REQUESTS["POST", "/v1/studies"])
    study = Study(study_id=STUDY, spec=requested.study(), created_at=now, created_by="fuzz")
    await Collection(fabric.private, "studies", Study).put(STUDY, study)
    nightly = ScheduleRequest.model_validate(REQUESTS["POST", "/v1/schedules"])
    schedule = nightly.schedule(by="fuzz", now=now)
    await Collection(fabric.private, "schedules", Schedule).put(schedule.name, schedule)
    if not await fabric.queue.dead_letters(1):
        letter = Outgoing(body=b"{}", message_id=secrets.token_hex(4), expires_at=now + _HOUR)
        await fabric.queue.send([letter])
        delivery = await fabric.queue.receive(1.0)
        if delivery is not None:
            await fabric.queue.dead_letter(delivery, "BadJob", "not a job")
