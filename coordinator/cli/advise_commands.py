"""The ``broadside advise`` commands, which calculate settings without traffic."""

from typing import Annotated, Any

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.coordinator.core import formatting
from broadside.coordinator.core.quantities import parse_rate, parse_size, parse_time

app = CommandGroup()


@app.command()
def window(
    rtt: Annotated[str, typer.Option(help="round-trip time of the path, such as 2ms")],
    rate: Annotated[str, typer.Option(help="payload rate that is wanted, such as 1.5G")],
    size: Annotated[
        str | None,
        typer.Option("--window", help="a session's window, such as 128K: how many sessions then?"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, nothing else")] = False,
) -> None:
    """Print the bandwidth-delay product, the window for one session, and the sessions needed."""
    from broadside.coordinator.core.plan.window_advice import advise_window

    values: dict[str, Any] = {}
    for name, text, parse in (
        ("rate", rate, parse_rate),
        ("rtt", rtt, parse_time),
        ("window", size, parse_size),
    ):
        try:
            values[name] = None if text is None else parse(text)
        except ValueError as error:
            stop(f"--{name}: {error}", Exit.USAGE)
    advice = advise_window(values["rate"], values["rtt"], values["window"])
    if as_json:
        typer.echo(advice.model_dump_json(indent=2))
        return
    typer.echo(
        f"{formatting.rate(advice.bits_per_second)} of payload over "
        f"{formatting.time(advice.rtt_s)}: {advice.bdp_bytes} bytes in flight (BDP)"
    )
    typer.echo(advice.sentence)
