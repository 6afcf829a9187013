"""Keys of table rows, names of documents and names of collections.

This module is the only place that defines them. Each row has a partition key and a row key
(partition | row). There are three tables, because access rights are granted per table.
:mod:`broadside.exchange.records` lists the rights. ``<part>`` and ``<n>`` are three digits from
000. ``<share>`` is the partition number of an agent
(:func:`broadside.exchange.pacing.server_share`). Share 0 is omitted, so the key of its partition
ends with the hour.

**control**, read by agents and written by the coordinator::

    run.<run>               | control                             Control
    run.<run>.control.<n>   | control                             its copy, for pairs from n x 250
                            | plan.<part>                         document (coordinator)
                            | moved.<burst>.<pair>                Move (coordinator)
                            | ended.<burst>                       BurstEnd (coordinator)
                            | jobs.<burst>.<n>                    digests of job messages

**results**, written by agents::

    burst.<run>.<burst>     | claim.<pair>                        Claim
                            | report.<pair>                       JobReport
                            | chunk.client.<pair>.<n>             packed seconds, the newest: tail
                            | probe.<pair>.<n>                    packed probes
                            | canary.<pair>.<n>                   packed canaries
    tests.<UTC hour>.<share>| <epoch ms>.<agent>.<port>           ServerTest
                            | <epoch ms>.<agent>.<port>.chunk.<n> packed seconds
    presence                | <role>.<agent>                      Presence, without its passport
    passport                | <role>.<agent>                      Passport
    boot                    | <host>                              boot status, by Azure's fetch.py
    tunnel.<server agent>   | ask.<vni>.<job>                     Tunnel
                            | answer.<vni>.<job>                  problem, or empty

**private**, used by the coordinator only::

    runs                    | <inverted created epoch ms>.<run>   RunHeader, newest first
                            | open.<run>                          empty, for a run without verdict
    run.<run>               | header                              RunHeader
                            | queued.<burst>                      QueuedBurst
                            | closed.<burst>                      ClosedBurst (coordinator)
                            | judging                             Judging
                            | given.<burst>.<pair>.<agent>        endpoint and time of that job
                            | summary.<document>.<part>           document, see Document
    schedules               | <name>                              Schedule
    fired.<schedule>        | <UTC time>                          a time, create-only
    studies                 | <study id>                          Study
    switches                | <switch name>                       Turn, with the study that uses it
    places                  | <destination name>                  PlaceSet, start of notifications
    launches                | <digest of caller and key>          Launched, the run of this key
    reservations            | <agent>:<port>                      Reservation, the run that uses it
    tokens                  | <name>                              Token, hashed
    joins                   | <name>                              Join, its code hashed
    enrolled                | <role>.<agent>                      Enrolled, its secret hashed
    backups                 | <kind>                              BackupRecord
    audit.<UTC month>       | <inverted epoch ms>.<suffix>        a write over the API

The output of an engine has a folder and a file name in the raw store. The raw store is a blob
container, or the results table with documents (folder | file.<part>)::

    raw.<run>.<burst>       / client.<pair>
    raw.tests.<UTC hour>    / <epoch ms>.<agent>.<port>
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from broadside.exchange.messages import ServerTest, Tunnel
from broadside.exchange.pacing import SERVER_SHARES_COUNT, server_share
from broadside.exchange.ports import RawName

# An inverted time is this number minus epoch milliseconds. 13 digits last until the year 2286.
_INVERTED_FROM_MS: Final = 9_999_999_999_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

RUNS: Final = "runs"
# This is a letter, so these rows will be sorted after the list of runs.
OPEN: Final = "open."
# The end of the range of these rows. "/" is the character after the dot.
AFTER_OPEN: Final = "open/"
PRESENCE: Final = "presence"
PASSPORT: Final = "passport"

# Rows of a run's partitions
CONTROL: Final = "control"
PLAN: Final = "plan"
ENDED: Final = "ended."
MOVED: Final = "moved."
JOBS: Final = "jobs."
# Pairs in one row. The row has 4 KiB, and each agent of the burst reads it once.
JOBS_PAIRS_COUNT: Final = 128
HEADER: Final = "header"
JUDGING: Final = "judging"
QUEUED: Final = "queued."
CLOSED: Final = "closed."
GIVEN: Final = "given."

# Rows of a burst's partition
CLAIM: Final = "claim."
REPORT: Final = "report."
CHUNK: Final = "chunk.client."
PROBE: Final = "probe."
CANARY: Final = "canary."

TESTS: Final = "tests."
TEST_CHUNK: Final = ".chunk"

# Rows of a server agent's partition of tunnels
ASK: Final = "ask"
ANSWER: Final = "answer"

# Collections
SCHEDULES: Final = "schedules"
STUDIES: Final = "studies"
SWITCHES: Final = "switches"
PLACES: Final = "places"
LAUNCHES: Final = "launches"
RESERVATIONS: Final = "reservations"
TOKENS: Final = "tokens"
JOINS: Final = "joins"
ENROLLED: Final = "enrolled"
BACKUPS: Final = "backups"


class Document(StrEnum):
    """Documents of a run or burst that the coordinator stores in addition to the plan.

    Attributes:
        RUN: Verdict of the run (``RunSummary``).
        BURST: The result of a burst (``BurstSummary``).
        SERIES: Series of a burst (``BurstSeries``).
        COUNTER: Device counters used for the verdict. For a burst, the readings of a device that
            stores no history.
        TELEMETRY: Telemetry of the device. For a burst, the telemetry that was available then.
        NEIGHBOURS: Other runs that were active at the same time.
        FLEET: The agents at the launch.
        PRICE: Data from which the price is calculated.
        CAPS: Bandwidth limits of the agents' interfaces.
        TROUBLES: Outages that the coordinator detected.
        IMPORT: Values that belong to an import.
        GUARDS: Values of the guards of a burst.
        ANNOUNCED: Destinations that were notified that the run has ended.
    """

    RUN = "run"
    BURST = "burst"
    SERIES = "series"
    COUNTER = "ledger"
    TELEMETRY = "witnesses"
    NEIGHBOURS = "neighbours"
    FLEET = "fleet"
    PRICE = "price"
    CAPS = "caps"
    TROUBLES = "troubles"
    IMPORT = "import"
    GUARDS = "guards"
    ANNOUNCED = "announced"


def document_key(document: Document, burst_index: int | None) -> str:
    """Return the row key of a document, without its part number. None is a run document.

    Args:
        document: Kind of the document.
        burst_index: Burst index from 0, or None for a document of the run.
    """
    return f"summary.{document}" + ("" if burst_index is None else f".{burst_index:05d}")


def fired_shelf(schedule: str) -> str:
    """Return the collection with the start times of a schedule."""
    return f"fired.{schedule}"


def audit_shelf(month: str) -> str:
    """Return the collection with the audit log of a month."""
    return f"audit.{month}"


def run_partition(run_id: str) -> str:
    """Return the partition of a run."""
    return f"run.{run_id}"


def control_partition(run_id: str, copy: int) -> str:
    """Return the partition of a copy of the control row. Copy 0 is the row itself.

    Args:
        run_id: The run id.
        copy: The number of the copy.
    """
    return run_partition(run_id) + (f".control.{copy:03d}" if copy else "")


def jobs_key(burst_index: int, part: int) -> str:
    """Return the key of a row with digests of a burst's jobs.

    Args:
        burst_index: Burst index from 0.
        part: Number of the row, because one row cannot contain the digests of all jobs.
    """
    return f"{JOBS}{burst_index:05d}.{part:04d}"


def run_key(created_at: datetime, run_id: str) -> str:
    """Return the key of a run in the list of runs.

    Args:
        created_at: Time of the launch. A later run has a smaller key, so that it is listed first.
        run_id: The run id.
    """
    return f"{newest_first(created_at)}.{run_id}"


def burst_partition(run_id: str, burst_index: int) -> str:
    """Return the partition of a burst.

    Args:
        run_id: The run id.
        burst_index: Burst index from 0.
    """
    return f"burst.{run_id}.{burst_index:05d}"


def server_tests_partition(at: datetime, agent_id: str) -> str:
    """Return the partition of an agent's tests that started in a UTC hour.

    Args:
        at: Any time in the hour.
        agent_id: The server agent's id.
    """
    return _server_tests_share(at, server_share(agent_id))


def server_tests_partitions(at: datetime) -> tuple[str, ...]:
    """Return the partitions of all agents' tests that started in the UTC hour of ``at``."""
    return tuple(_server_tests_share(at, share) for share in range(SERVER_SHARES_COUNT))


def server_tests_hour(partition: str) -> datetime | None:
    """Return the UTC hour of a partition of tests, or None if the key is invalid."""
    try:
        return datetime.fromisoformat(partition.removeprefix(TESTS)[:13]).replace(tzinfo=UTC)
    except ValueError:
        return None


def _server_tests_share(at: datetime, share: int) -> str:
    return f"{TESTS}{at.astimezone(UTC):%Y-%m-%dT%H}" + (f".{share}" if share else "")


def server_test_key(test: ServerTest) -> str:
    """Return the row key of a test at a server."""
    return f"{epoch_ms(test.started_at):013d}.{test.agent_id}.{test.endpoint.port}"


def tunnels_partition(server_id: str) -> str:
    """Return the partition of the tunnel requests to a server."""
    return f"tunnel.{server_id}"


def tunnel_key(kind: str, tunnel: Tunnel) -> str:
    """Return the row key of a tunnel request (or of its answer, by ``kind``).

    Args:
        kind: Prefix of the key: request or answer.
        tunnel: Tunnel with its VNI and the job that needs it.
    """
    return f"{kind}.{tunnel.vni:08d}.{tunnel.opened_by}"


def raw_folder(run_id: str, burst_index: int) -> str:
    """Return the folder for the raw output of a burst.

    Args:
        run_id: The run id.
        burst_index: Burst index from 0.
    """
    return f"raw.{run_id}.{burst_index:05d}"


def raw_name(run_id: str, burst_index: int, pair_index: int) -> RawName:
    """Return the name of a client's raw output.

    Args:
        run_id: The run id.
        burst_index: Burst index from 0.
        pair_index: Pair index from 0.
    """
    return RawName(folder=raw_folder(run_id, burst_index), file=f"client.{pair_index:05d}")


def server_raw_folder(at: datetime) -> str:
    """Return the folder for the raw output of servers in a UTC hour."""
    return f"raw.{_server_tests_share(at, 0)}"


def server_raw_name(test: ServerTest) -> RawName:
    """Return the name of a server's raw output."""
    return RawName(folder=server_raw_folder(test.started_at), file=server_test_key(test))


def newest_first(at: datetime) -> str:
    """Return a key prefix for a time. The prefix of a later time sorts first."""
    return f"{_INVERTED_FROM_MS - epoch_ms(at):013d}"


def epoch_ms(at: datetime) -> int:
    """Return a time as whole milliseconds since 1970."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
