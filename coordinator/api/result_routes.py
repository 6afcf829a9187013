"""Routes for run results, by burst, pair and second."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from fastapi import Depends, Header, Path, Query, Response

from broadside.coordinator.api.dependencies import CurrentCoordinator, make_router
from broadside.coordinator.api.pagination import PAGED, Page
from broadside.coordinator.api.problems import PROBLEMS
from broadside.coordinator.api.tabular_responses import FILE_CONTENT, rows_at
from broadside.coordinator.views.burst_responses import (
    list_bursts,
    list_pairs,
    read_burst,
    read_reconciliation,
    read_verdict,
)
from broadside.coordinator.views.responses import (
    BurstEntry,
    PairEntry,
    RunReconciliation,
    RunVerdict,
)
from broadside.coordinator.views.tables.formats import FORMATS, JSON, chosen_format
from broadside.coordinator.views.tables.stored_tables import SecondsOf, SeriesQuery, series_body
from broadside.exchange.messages import BurstIndex, Message, RunId, UtcDatetime

router = make_router("results", "/v1/runs/{run_id}")

BurstNumber = Annotated[int, Query(ge=1, le=10_000, description="number of the burst, from 1")]
_SECOND_S: Final = 1


class SeriesColumn(Message):
    """One column of a series. All columns have the same number of values.

    Attributes:
        name: Name of the column, which contains the unit.
        unit: Unit of the values: bit/s, s, ratio, segments, UTC or name.
        layer: Layer at which bytes were counted, which is payload. If None, the column has no
            bytes.
        values: Values by row. None is unknown, never zero.
    """

    name: str
    unit: str
    layer: Literal["payload"] | None
    values: tuple[float | str | None, ...]


class Series(Message):
    """Seconds of a burst by column, with one row per bin, flow and (optionally) pair.

    Attributes:
        resolution_s: Length of a bin in seconds.
        of: Owner of the rows: the fleet, or each pair.
        window_from_at: Start of the window of the main metrics. None if there is no window.
        window_before_at: End of the window of the main metrics. None if there is no window.
        columns: Columns with values of the same length.
    """

    run_id: RunId
    burst_index: BurstIndex
    planned_start_at: UtcDatetime
    resolution_s: int
    of: SecondsOf
    window_from_at: UtcDatetime | None
    window_before_at: UtcDatetime | None
    columns: tuple[SeriesColumn, ...]


@router.get("/bursts", responses=PAGED)
async def list_run_bursts(
    run_id: str,
    coordinator: CurrentCoordinator,
    page: Page,
) -> Sequence[BurstEntry]:
    """List the bursts of a run in time order.

    Each has its state and, when finished, its results.
    """
    entries, following = await list_bursts(
        coordinator, run_id, limit=page.limit, cursor=page.cursor
    )
    page.name_next(following)
    return entries


@router.get("/bursts/{burst}", openapi_extra=rows_at("."))
async def read_run_burst(
    run_id: str, burst: Annotated[int, Path(ge=1, le=10_000)], coordinator: CurrentCoordinator
) -> BurstEntry:
    """Return one burst by its number from 1."""
    return await read_burst(coordinator, run_id, burst - 1)


@router.get("/pairs", responses=PAGED)
async def list_run_pairs(
    run_id: str,
    coordinator: CurrentCoordinator,
    page: Page,
    burst: BurstNumber = 1,
) -> Sequence[PairEntry]:
    """List the pairs of one burst, each with its agent, outcome and results."""
    entries, following = await list_pairs(
        coordinator, run_id, burst - 1, limit=page.limit, cursor=page.cursor
    )
    page.name_next(following)
    return entries


def _series_query(
    burst: BurstNumber = 1,
    resolution_s: Annotated[int, Query(ge=1, le=3600, description="seconds per row")] = _SECOND_S,
    of: Annotated[
        SecondsOf | None,
        Query(description="`fleet` or `pairs`; default: the fleet, or `pair` if it is set"),
    ] = None,
    pair: Annotated[
        str | None,
        Query(max_length=20, description="name or number of a pair, such as pair-003 or 3"),
    ] = None,
) -> SeriesQuery:
    return SeriesQuery(burst_index=burst - 1, resolution_s=resolution_s, of=of, pair=pair)


@router.get(
    "/series",
    response_class=Response,
    responses={
        200: {
            "model": Series,
            "description": "By column as JSON, or by row as CSV, Arrow or Parquet",
            "content": {media_type: FILE_CONTENT for media_type in FORMATS if media_type != JSON},
        },
        406: PROBLEMS[404],
    },
)
async def read_run_series(
    run_id: str,
    coordinator: CurrentCoordinator,
    query: Annotated[SeriesQuery, Depends(_series_query)],
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Return the seconds of a finished burst.

    They are the rates of the fleet, or the received rate of each pair. Gaps are null, never zero.
    `Accept` selects `application/json`, `text/csv`, `application/vnd.apache.arrow.stream` or
    `application/vnd.apache.parquet`.
    """
    media_type = chosen_format(accept)
    body = await series_body(coordinator, run_id, query, media_type)
    return Response(body, media_type=media_type, headers={"Vary": "Accept"})


@router.get("/verdict", openapi_extra=rows_at("findings"))
async def read_run_verdict(run_id: str, coordinator: CurrentCoordinator) -> RunVerdict:
    """Return the verdict of a finished run with its findings and headline."""
    return await read_verdict(coordinator, run_id)


@router.get("/reconciliation", responses=PAGED, openapi_extra=rows_at("bursts"))
async def read_run_reconciliation(
    run_id: str,
    coordinator: CurrentCoordinator,
    page: Page,
) -> RunReconciliation:
    """Compare the bytes of the fleet with the device counter.

    The comparison is made for the run and for each burst.
    """
    entries, following = await read_reconciliation(
        coordinator, run_id, limit=page.limit, cursor=page.cursor
    )
    page.name_next(following)
    return entries
