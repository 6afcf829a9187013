"""Files that commands write."""

from pathlib import Path
from typing import Any

import typer

from coordinator.cli.exits import Exit, stop
from coordinator.cli.screen_text import write_bytes
from coordinator.core import words


def save_chart(made: dict[str, Any], output: Path, *, width: int, height: int) -> None:
    """Write a chart into a file by its ending."""
    import json

    from coordinator.views.browser import BrowserError, paint_png

    figure: dict[str, Any] = made["figure"]
    match output.suffix:
        case ".json":
            save(json.dumps(figure).encode(), output)
        case ".svg":
            from coordinator.views.charts.svg import alone

            save(alone(figure, width=width, height=height).encode(), output)
        case ".png":
            try:
                body = paint_png(figure, width=width, height=height, scale=2.0)
            except BrowserError as error:
                stop(str(error), Exit.CANNOT_RUN)
            save(body, output)
        case other:
            stop(f"--output {output}: ending {other!r} is not .png, .svg or .json", Exit.USAGE)


def save(body: bytes, output: Path | None) -> None:
    if output is None or str(output) == "-":
        write_bytes(body)
        return
    try:
        output.write_bytes(body)
    except OSError as error:
        stop(f"--output {output}: {error.strerror}; name a file that can be written", Exit.USAGE)
    typer.echo(f"wrote {output} ({words.size(len(body))})", err=True)
