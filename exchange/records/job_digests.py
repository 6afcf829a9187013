"""What the messages of a burst's jobs hash to: how an agent tells a planned job from a forged one.

The coordinator writes them in the table *control*, which agents read, before it sends the messages.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from broadside.exchange.messages import Job
from broadside.exchange.ports import Entity, RecordUnreadable
from broadside.exchange.records.keys import JOBS_PAIRS_COUNT, jobs_key, run_partition
from broadside.exchange.rows import cut_properties, joined_properties, make_row, row_name

DIGEST_BYTES: Final = 32
_NONE: Final = bytes(DIGEST_BYTES)  # of a pair that has no job


def digest_of(body: bytes) -> bytes:
    """SHA-256 of a message as it was sent."""
    return hashlib.sha256(body).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJobs:
    """What the plan says of some pairs of one burst."""

    by_pair: Mapping[int, bytes]  # the digest of each one's job
    superseded: frozenset[bytes] = field(default_factory=frozenset)  # of jobs that moved since


def jobs_rows(
    run_id: str, burst_index: int, jobs: Iterable[Job], superseded: Iterable[Job] = ()
) -> list[Entity]:
    """The rows of a burst, :data:`~broadside.exchange.records.keys.JOBS_PAIRS_COUNT` pairs each."""
    old: dict[int, list[bytes]] = {}
    for job in superseded:
        old.setdefault(_part(job), []).append(digest_of(job.body))
    rows = []
    for part, group in groupby(sorted(jobs, key=lambda job: job.pair_index), key=_part):
        digests = [_NONE] * JOBS_PAIRS_COUNT
        for job in group:
            digests[job.pair_index % JOBS_PAIRS_COUNT] = digest_of(job.body)
        properties = cut_properties("digests", b"".join(digests))
        properties |= cut_properties("superseded", b"".join(old.get(part, [])))
        rows.append(make_row(run_partition(run_id), jobs_key(burst_index, part), properties))
    return rows


def parse_jobs(part: int, row: Entity) -> PlannedJobs:
    """Raises ``RecordUnreadable``."""
    digests, old = (_cut(row, name) for name in ("digests", "superseded"))
    if len(digests) != JOBS_PAIRS_COUNT:
        raise RecordUnreadable(f"row {row_name(row)}: {len(digests)} digests; plan the run anew")
    first = part * JOBS_PAIRS_COUNT
    by_pair = {first + at: digest for at, digest in enumerate(digests) if digest != _NONE}
    return PlannedJobs(by_pair=by_pair, superseded=frozenset(old))


def _part(job: Job) -> int:
    return job.pair_index // JOBS_PAIRS_COUNT


def _cut(row: Entity, name: str) -> list[bytes]:
    whole = joined_properties(row, name)
    if len(whole) % DIGEST_BYTES:
        raise RecordUnreadable(f"row {row_name(row)}: {name} is cut short; plan the run anew")
    return [whole[at : at + DIGEST_BYTES] for at in range(0, len(whole), DIGEST_BYTES)]
