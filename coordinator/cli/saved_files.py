"""Files that commands write."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.screen_text import write_bytes
from broadside.coordinator.core import formatting


class ReportFormat(StrEnum):
    HTML = "html"
    PDF = "pdf"
    JSON = "json"

    @classmethod
    def chosen(cls, format: "ReportFormat | None", output: Path | None) -> "ReportFormat":
        """Return the format to use, from the option or the file extension. The default is HTML.

        Args:
            format: The format option, or None.
            output: File path, or None.
        """
        return format or by_ending(output, cls) or cls.HTML

    @property
    def asked(self) -> str:
        """Format to request from the coordinator. A PDF is printed locally using HTML."""
        return "json" if self is ReportFormat.JSON else "html"


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="`-` is standard output"),
]


ChartOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="ending in .png, .svg or .json"),
]
AsFormat = Annotated[
    ReportFormat | None,
    typer.Option("--format", help="default: by the output's ending, else html"),
]


def save_chart(made: dict[str, Any], output: Path, *, width: int, height: int) -> None:
    """Write a chart to a file. The file extension defines the format.

    Args:
        made: The chart to write, with a plotly ``figure``.
        output: File with the extension .json, .svg or .png.
        width: Width to use, in pixels.
        height: Height to use, in pixels.
    """
    import json

    figure: dict[str, Any] = made["figure"]
    match output.suffix:
        case ".json":
            save(json.dumps(figure).encode(), output)
        case ".svg":
            from broadside.coordinator.views.charts.svg import alone

            save(alone(figure, width=width, height=height).encode(), output)
        case ".png":
            from broadside.coordinator.views.browser import paint_png

            save(paint_png(figure, width=width, height=height, scale=2.0), output)
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
    typer.echo(f"wrote {output} ({formatting.size(len(body))})", err=True)


def save_report(name: str, body: bytes, format: ReportFormat, output: Path | None) -> None:
    """Write a report to a file, as received or as PDF.

    Args:
        name: Run or study id, to be used in the default file name.
        body: The report that was received.
        format: File format to write.
        output: File, `-` for standard output, or None for the default name.
    """
    if format is ReportFormat.PDF:
        from broadside.coordinator.views.browser import print_pdf

        body = print_pdf(body.decode())
    save(body, output or Path(f"{name}.{format.value}"))


_F = TypeVar("_F", bound=StrEnum)


def by_ending(output: Path | None, formats: type[_F]) -> _F | None:
    """Return the format of a file extension.

    Args:
        output: The file, or None.
        formats: The known formats. Another extension exits.

    Returns:
        The format. None without an extension, and for a folder.
    """
    if output is None or not output.suffix or output.is_dir():
        return None
    try:
        return formats(output.suffix[1:].lower())
    except ValueError:
        known = ", ".join(f".{each.value}" for each in formats)
        stop(
            f"--output {output}: ending {output.suffix!r} is none of {known}; or give --format",
            Exit.USAGE,
        )
