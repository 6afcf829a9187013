"""Digests of the job messages of a burst, which agents use to detect forged jobs.

The coordinator writes the digests to the table *control* before it sends the messages. Agents can
only read this table.
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
# Placeholder for a pair without a job.
_NONE: Final = bytes(DIGEST_BYTES)


def digest_of(body: bytes) -> bytes:
    """Return the SHA-256 digest of a message body."""
    return hashlib.sha256(body).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJobs:
    """Planned jobs of some pairs in one burst.

    Attributes:
        by_pair: Digest of the job, by pair index.
        superseded: Digests of earlier jobs, which were replaced because the server changed.
    """

    by_pair: Mapping[int, bytes]
    superseded: frozenset[bytes] = field(default_factory=frozenset)


def jobs_rows(
    run_id: str, burst_index: int, jobs: Iterable[Job], superseded: Iterable[Job] = ()
) -> list[Entity]:
    """Return the digest rows of a burst, with ``JOBS_PAIRS_COUNT`` pairs per row.

    Args:
        run_id: The run id.
        burst_index: The burst index in the run, from 0.
        jobs: Jobs of the burst.
        superseded: Earlier jobs of the burst that were replaced.
    """
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
    """Read the planned jobs of one row.

    Args:
        part: The number of the row.
        row: The row from :func:`jobs_rows`.

    Returns:
        SHA-256 of the jobs by pair index, and the digests of superseded ones.

    Raises:
        RecordUnreadable: The row is not valid.
    """
    digests, old = (_cut(row, name) for name in ("digests", "superseded"))
    if len(digests) != JOBS_PAIRS_COUNT:
        raise RecordUnreadable(f"row {row_name(row)}: {len(digests)} digests; plan the run again")
    first = part * JOBS_PAIRS_COUNT
    by_pair = {first + at: digest for at, digest in enumerate(digests) if digest != _NONE}
    return PlannedJobs(by_pair=by_pair, superseded=frozenset(old))


def _part(job: Job) -> int:
    return job.pair_index // JOBS_PAIRS_COUNT


def _cut(row: Entity, name: str) -> list[bytes]:
    text = joined_properties(row, name)
    if len(text) % DIGEST_BYTES:
        raise RecordUnreadable(f"row {row_name(row)}: {name} is incomplete; plan the run again")
    return [text[at : at + DIGEST_BYTES] for at in range(0, len(text), DIGEST_BYTES)]
