"""The only place that spells keys, document names and the names of shelves.

Every row stands under a partition key and a row key (partition | row). Three tables hold them, for
rights are given by table: who may write where is in :mod:`broadside.exchange.records`. ``<part>``
and ``<n>`` are three digits from 000; ``<share>`` is an agent's
(:func:`broadside.exchange.pacing.server_share`), and the first one's partition has the hour alone.

**control**, which agents read and the coordinator writes::

    run.<run>               | control                             Control
    run.<run>.control.<n>   | control                             its copy, for pairs from n x 250
                            | plan.<part>                         document (coordinator's)
                            | moved.<burst>.<pair>                Move (coordinator's)
                            | jobs.<burst>.<n>                    what its jobs' messages hash to

**results**, which agents write::

    burst.<run>.<burst>     | claim.<pair>                        Claim
                            | report.<pair>                       JobReport
                            | chunk.client.<pair>.<n>             packed seconds; the newest: tail
                            | probe.<pair>.<n>                    packed probes
    tests.<UTC hour>.<share>| <epoch ms>.<agent>.<port>           ServerTest
                            | <epoch ms>.<agent>.<port>.chunk.<n> packed seconds
    presence                | <role>.<agent>                      Presence, without its passport
    passport                | <role>.<agent>                      Passport
    boot                    | <host>                              boot status, by Azure's fetch.py
    tunnel.<server agent>   | ask.<vni>.<job>                     Tunnel
                            | answer.<vni>.<job>                  problem, or none

**private**, the coordinator's alone::

    runs                    | <inverted created epoch ms>.<run>   RunHeader; newest first
                            | open.<run>                          nothing; a run without a verdict
    run.<run>               | header                              RunHeader
                            | queued.<burst>                      QueuedBurst
                            | closed.<burst>                      ClosedBurst (coordinator's)
                            | judging                             Judging
                            | given.<burst>.<pair>.<agent>        endpoint and instant of that job
                            | summary.<document>.<part>           document, see Document
    schedules               | <name>                              Schedule
    fired.<schedule>        | <UTC instant>                       an instant, create-only
    studies                 | <study id>                          Study
    switches                | <switch's name>                     Turn: which study has it
    launches                | <digest of caller and key>          Launched: which run a key decided
    reservations            | <agent>:<port>                      Reservation: which run has it
    tokens                  | <name>                              Token, hashed
    joins                   | <name>                              Join, its code hashed
    enrolled                | <role>.<agent>                      Enrolled, its secret hashed
    backups                 | <kind>                              BackupRecord
    audit.<UTC month>       | <inverted epoch ms>.<suffix>        a write over the API

What engines printed is a folder and a file of the raw store: of a blob container or, without one,
of the table of results (folder | file.<part>, a document)::

    raw.<run>.<burst>       / client.<pair>
    raw.tests.<UTC hour>    / <epoch ms>.<agent>.<port>
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from broadside.exchange.messages import ServerTest, Tunnel
from broadside.exchange.pacing import SERVER_SHARES_COUNT, server_share
from broadside.exchange.ports import RawName

_INVERTED_FROM_MS: Final = 9_999_999_999_999  # 13 digits, until the year 2286
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

RUNS: Final = "runs"
OPEN: Final = "open."  # after all digits: behind the list of runs
AFTER_OPEN: Final = "open/"  # the character after the dot's
PRESENCE: Final = "presence"
PASSPORT: Final = "passport"

# Rows of a run's partitions
CONTROL: Final = "control"
PLAN: Final = "plan"
MOVED: Final = "moved."
JOBS: Final = "jobs."
JOBS_PAIRS_COUNT: Final = 128  # in one row: 4 KiB, which every agent of the burst reads once
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

TESTS: Final = "tests."
TEST_CHUNK: Final = ".chunk"

# Rows of a server agent's partition of tunnels
ASK: Final = "ask"
ANSWER: Final = "answer"

# Shelves
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
    """What the coordinator keeps of a run, or of each of its bursts, beside its plan."""

    RUN = "run"  # its verdict: RunSummary
    BURST = "burst"  # of a burst: BurstSummary
    SERIES = "series"  # of a burst: BurstSeries
    LEDGER = "ledger"  # the firewall's figures as the run was judged by; of a burst: readings of
    # a device that keeps none
    WITNESSES = "witnesses"  # what was told of the device; of a burst: as far as it was then
    NEIGHBOURS = "neighbours"  # other runs beside it
    FLEET = "fleet"  # agents as they were at the launch
    PRICE = "price"  # what its price rests on
    CAPS = "caps"  # of the agents' interfaces
    TROUBLES = "troubles"  # that the coordinator lived through
    IMPORT = "import"  # an import's values
    ANNOUNCED = "announced"  # the places that were told of its end


def document_key(document: Document, burst_index: int | None) -> str:
    return f"summary.{document}" + ("" if burst_index is None else f".{burst_index:05d}")


def fired_shelf(schedule: str) -> str:
    return f"fired.{schedule}"


def audit_shelf(month: str) -> str:
    return f"audit.{month}"


def run_partition(run_id: str) -> str:
    return f"run.{run_id}"


def control_partition(run_id: str, copy: int) -> str:
    """Where a copy of the control row stands; 0 is the row itself, with the plan."""
    return run_partition(run_id) + (f".control.{copy:03d}" if copy else "")


def jobs_key(burst_index: int, part: int) -> str:
    return f"{JOBS}{burst_index:05d}.{part:04d}"


def run_key(created_at: datetime, run_id: str) -> str:
    return f"{newest_first(created_at)}.{run_id}"


def burst_partition(run_id: str, burst_index: int) -> str:
    return f"burst.{run_id}.{burst_index:05d}"


def server_tests_partition(at: datetime, agent_id: str) -> str:
    """Where an agent's tests stand that started in the UTC hour of ``at``."""
    return _server_tests_share(at, server_share(agent_id))


def server_tests_partitions(at: datetime) -> tuple[str, ...]:
    """Where all agents' tests of that hour stand."""
    return tuple(_server_tests_share(at, share) for share in range(SERVER_SHARES_COUNT))


def server_tests_hour(partition: str) -> datetime | None:
    """The hour that such a partition is of; None for one that none of ours named."""
    try:
        return datetime.fromisoformat(partition.removeprefix(TESTS)[:13]).replace(tzinfo=UTC)
    except ValueError:
        return None


def _server_tests_share(at: datetime, share: int) -> str:
    return f"{TESTS}{at.astimezone(UTC):%Y-%m-%dT%H}" + (f".{share}" if share else "")


def server_test_key(test: ServerTest) -> str:
    return f"{epoch_ms(test.started_at):013d}.{test.agent_id}.{test.endpoint.port}"


def tunnels_partition(server_id: str) -> str:
    return f"tunnel.{server_id}"


def tunnel_key(kind: str, tunnel: Tunnel) -> str:
    return f"{kind}.{tunnel.vni:08d}.{tunnel.opened_by}"


def raw_folder(run_id: str, burst_index: int) -> str:
    return f"raw.{run_id}.{burst_index:05d}"


def raw_name(run_id: str, burst_index: int, pair_index: int) -> RawName:
    return RawName(folder=raw_folder(run_id, burst_index), file=f"client.{pair_index:05d}")


def server_raw_folder(at: datetime) -> str:
    return f"raw.{_server_tests_share(at, 0)}"


def server_raw_name(test: ServerTest) -> RawName:
    return RawName(folder=server_raw_folder(test.started_at), file=server_test_key(test))


def newest_first(at: datetime) -> str:
    """An instant as the beginning of a key: later ones come before."""
    return f"{_INVERTED_FROM_MS - epoch_ms(at):013d}"


def epoch_ms(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)
