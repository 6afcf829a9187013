"""What a local Chromium does for us: a page as PDF, a figure as PNG. Nothing else needs one."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broadside.exchange.installation import bring_extra
from broadside.exchange.programs import program_environment

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OTHER_TAG: Final = re.compile(r"<(?!/?(?:b|i|br|sub|sup|extra)\s*/?>)")  # than our figures have
_PDF_S: Final = 120.0  # s until a page must be printed


class BrowserError(Exception):
    """No browser, or it failed; the message is one line for a person."""


def find_browser() -> str:
    """The browser that ``BROWSER_PATH`` names, else the first on PATH. Raises
    :class:`BrowserError`."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        if not Path(named).is_file():
            raise BrowserError(f"BROWSER_PATH: no file {named}; name a Chromium or Chrome")
        return named
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise BrowserError(
            "browser: no chromium or google-chrome on PATH; apt-get install chromium, or set "
            "BROWSER_PATH"
        )
    return found


def print_pdf(page: str) -> bytes:
    """A self-contained HTML page as PDF. Raises :class:`BrowserError`."""
    browser = find_browser()
    with _folder() as folder:
        source, target = folder / "page.html", folder / "page.pdf"
        source.write_text(page, encoding="utf-8")
        argv = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses root without
            f"--user-data-dir={folder / 'profile'}",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        try:
            done = subprocess.run(
                argv, env=program_environment(), capture_output=True, timeout=_PDF_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BrowserError(f"{browser}: no PDF within {_PDF_S:g} s") from error
        if not target.is_file():
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise BrowserError(
                f"{browser}: no PDF, exit code {done.returncode}: {said[-1] if said else ''}"
            )
        return target.read_bytes()


def paint_png(figure: Mapping[str, Any], *, width: int, height: int, scale: float) -> bytes:
    """A plotly figure as PNG, by kaleido. Raises :class:`BrowserError`."""
    browser = find_browser()
    try:
        import kaleido
        import plotly  # noqa: F401 - kaleido takes its plotly.js, and would ask the network else
    except ModuleNotFoundError as error:
        raise BrowserError(
            f"png: {error.name} is missing; {bring_extra('reports')}, or write a .svg"
        ) from error
    with _folder() as folder:
        target = folder / "chart.png"
        options = {"format": "png", "width": width, "height": height, "scale": scale}
        kaleido.write_fig_sync(
            _harmless(dict(figure)), path=target, opts=options, kopts={"path": browser, "n": 1}
        )
        return target.read_bytes()


def _harmless(part: Any) -> Any:
    """The same figure, whose labels ask the browser for nothing: plotly reads some HTML in them,
    with styles that fetch."""
    if isinstance(part, str):
        return _OTHER_TAG.sub("&lt;", part)
    if isinstance(part, Mapping):
        return {name: _harmless(value) for name, value in part.items()}
    return [_harmless(value) for value in part] if isinstance(part, list | tuple) else part


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="broadside-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
