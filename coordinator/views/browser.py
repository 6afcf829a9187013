"""Conversion of HTML to PDF and of figures to PNG, with a local Chromium."""

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
# Any tag that Broadside does not use in its figures.
_OTHER_TAG: Final = re.compile(r"<(?!/?(?:b|i|br|sub|sup|extra)\s*/?>)")
# Timeout for printing a page.
_PDF_S: Final = 120.0


class BrowserError(Exception):
    """The browser is missing or has failed. The message is one line to show to the user."""


def find_browser() -> str:
    """Return the path of the browser.

    ``BROWSER_PATH`` has precedence over the browsers on PATH.

    Raises:
        BrowserError: There is no browser.
    """
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
    """Convert a self-contained HTML page to PDF.

    Raises:
        BrowserError: There is no browser, or it failed.
    """
    browser = find_browser()
    with _folder() as folder:
        source, target = folder / "page.html", folder / "page.pdf"
        source.write_text(page, encoding="utf-8")
        argv = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            # As root, Chromium does not start with its sandbox.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
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
    """Convert a plotly figure to PNG using kaleido.

    Args:
        figure: The figure, in plotly's JSON form.
        width: Width to use, in pixels before scaling.
        height: Height to use, in pixels before scaling.
        scale: Factor for the image width and height.

    Raises:
        BrowserError: The browser or kaleido is missing.
    """
    browser = find_browser()
    try:
        import kaleido
        import plotly  # noqa: F401 - kaleido uses its plotly.js and would otherwise load it from the network
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
    """Return the figure with unknown HTML tags in its labels escaped.

    Plotly renders some HTML in labels, with styles that could load external content.
    """
    if isinstance(part, str):
        return _OTHER_TAG.sub("&lt;", part)
    if isinstance(part, Mapping):
        return {name: _harmless(value) for name, value in part.items()}
    return [_harmless(value) for value in part] if isinstance(part, list | tuple) else part


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="broadside-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
