"""Fixtures to run all test cases on all adapters."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broadside.exchange.ports import JobQueue, RawStore, Table
from broadside.lab.azurite import Azurite
from broadside.lab.broker_process import BrokerProcess
from tests.contract.adapters import QUEUES, RAWS, TABLES, Place
from tests.contract.http_places import HttpPlaces
from tests.contract.recorded_azure import Answers, RecordedAzure


@pytest.fixture(params=sorted(QUEUES))
def queue_place(request: pytest.FixtureRequest) -> Place:
    return QUEUES[request.param].make(request)


@pytest.fixture(params=sorted(TABLES))
def table_place(request: pytest.FixtureRequest) -> Place:
    return TABLES[request.param].make(request)


@pytest.fixture(params=sorted(RAWS))
def raw_place(request: pytest.FixtureRequest) -> Place:
    return RAWS[request.param].make(request)


@pytest.fixture
async def raw(raw_place: Place) -> AsyncIterator[RawStore]:
    raw = raw_place.open_raw()
    yield raw
    await raw.close()


@pytest.fixture
async def queue(queue_place: Place) -> AsyncIterator[JobQueue]:
    queue = queue_place.open_queue()
    yield queue
    await queue.close()


@pytest.fixture
async def table(table_place: Place) -> AsyncIterator[Table]:
    table = table_place.open_table()
    yield table
    await table.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a Service Bus broker for the session. A place is a queue on it."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {}, sas_key="contract")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Run Azurite for the session. A place is a table or a container in it."""
    process = Azurite(tmp_path_factory.mktemp("azurite"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def answers() -> Answers:
    """Return the recorded error responses of the Azure services."""
    return Answers(Path(__file__).with_name("azure_answers.toml"))


@pytest.fixture(scope="session")
def recorded(answers: Answers) -> Iterator[RecordedAzure]:
    """Run the recorded services. A place is a table and a container in them."""
    with RecordedAzure(answers) as azure:
        yield azure


@pytest.fixture(scope="session")
def http_places() -> Iterator[HttpPlaces]:
    """Run a coordinator listener for the session. A place is a fabric behind it."""
    places = HttpPlaces()
    places.start()
    yield places
    places.stop()
