"""``broadside audit``: what was changed over the API, by whom, from where."""

from typing import Annotated

import typer

from coordinator.cli.connection import run
from coordinator.cli.lists import RowsOption, show_list
from coordinator.cli.options import Api, Json


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
        ["when (UTC)", "who", "role", "from", "what", "run", "status"],
        [
            [
                f"{row.at:%Y-%m-%d %H:%M:%S}",
                row.by,
                row.role,
                row.from_address or "this host",
                f"{row.method} {row.path}",
                row.run_id or "",
                "never ended" if row.status is None else str(row.status),
            ]
            for row in rows
        ],
        of="coordinator.auth.audit:AuditRow",
        none="nothing was changed yet",
        form=form,
        as_json=as_json,
        spare=["from", "role"],
    )
