"""The ``broadside audit`` command, which lists the changes made over the API."""

from typing import Annotated

import typer

from broadside.coordinator.cli.connection import run
from broadside.coordinator.cli.lists import RowsOption, show_list
from broadside.coordinator.cli.options import Api, Json


def audit(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="at most so many")] = 50,
    form: RowsOption = None,
    api: Api = None,
    as_json: Json = False,
) -> None:
    """List what was changed, newest first: who, what, from where, and how it ended."""

    rows = run(api, lambda client: client.audit(limit))
    show_list(
        rows,
        {
            "when (UTC)": lambda row: f"{row.at:%Y-%m-%d %H:%M:%S}",
            "who": lambda row: row.by,
            "role": lambda row: row.role,
            "from": lambda row: row.from_address or "this host",
            "what": lambda row: f"{row.method} {row.path}",
            "run": lambda row: row.run_id or "",
            "status": lambda row: "never ended" if row.status is None else str(row.status),
        },
        of="broadside.coordinator.auth.audit:AuditRow",
        none="nothing was changed yet",
        form=form,
        as_json=as_json,
        spare=["from", "role"],
    )
