"""The two doors of the command line: the same verbs over a network and on the fabric itself."""

import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.auth.audit import Audit
from coordinator.cli.client import Client
from coordinator.cli.local import Local
from coordinator.cli.refused import ApiError
from coordinator.views.requests import LaunchRequest
from exchange.fabric import Fabric, FabricSettings, open_fabric
from tests.unit.coordinator.stored_run import store_run

ONE_DOORS_OWN = ("driving", "is_operator")  # this process's loop; a token over the network


def verbs(door: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(verb)
        for name, verb in vars(door).items()
        if inspect.isfunction(verb) and not name.startswith("_") and name not in ONE_DOORS_OWN
    }


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    yield fabric
    await fabric.close()


def test_both_doors_have_the_same_verbs() -> None:
    assert verbs(Local) == verbs(Client)


async def test_a_write_is_recorded_with_how_it_ended(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    local = Local(fabric, "ann")
    with pytest.raises(ApiError, match="is over") as refused:
        await local.cancel(run_id, by="ann", reason="too late")
    assert refused.value.status == 409
    with pytest.raises(ApiError) as refused:
        await local.launch(LaunchRequest(scenario="smoke", by="ann"))
    assert refused.value.status == 409  # nobody is there to carry it
    rows, _ = await Audit(fabric.private).read(datetime.now(UTC), limit=10)
    assert [(row.by, row.method, row.route, row.run_id, row.status) for row in rows] == [
        ("ann", "POST", "/v1/runs", None, 409),
        ("ann", "POST", "/v1/runs/{run_id}/abort", run_id, 409),
    ]


async def test_what_is_wrong_with_a_filter_is_said_as_the_api_says_it(fabric: Fabric) -> None:
    local = Local(fabric)
    for asked, said in (
        ({"from_at": "yesterday"}, r"query\.from_at: .*got 'yesterday'"),
        ({"label": ["idps"]}, "give name:value"),
    ):
        with pytest.raises(ApiError, match=said) as refused:
            await local.runs(5, **asked)
        assert refused.value.status == 422


async def test_what_others_wrote_reaches_no_terminal_as_it_is(fabric: Fabric) -> None:
    run_id = await store_run(fabric)
    await fabric.records.runs.cancel_run(
        run_id, at=datetime.now(UTC), by="mal\x1b[2Jlory", reason="x"
    )
    status = await Local(fabric).status(run_id)
    assert status.cancelled_by is not None
    assert "\x1b" not in status.cancelled_by
