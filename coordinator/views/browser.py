"""Conversion of HTML to PDF and of SVG to PNG, with a local Chromium."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from broadside.exchange.programs import program_environment

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Timeout for one file.
BROWSER_TIMEOUT_S: Final = 120.0


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
    browser = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if browser is None:
        raise BrowserError(
            "browser: no chromium or google-chrome on PATH; apt-get install chromium, or set "
            "BROWSER_PATH"
        )
    return browser


def print_pdf(page: str) -> bytes:
    """Convert a self-contained HTML page to PDF.

    Raises:
        BrowserError: There is no browser, or it failed.
    """
    return _render(page, "page.html", "page.pdf", "--no-pdf-header-footer", "--print-to-pdf={}")


def render_png(drawing: str, width: int, height: int) -> bytes:
    """Convert an SVG drawing to PNG, with two pixels for each px.

    Args:
        drawing: The SVG file. It must not refer to other files.
        width: Width of the drawing, in px.
        height: Height of the drawing, in px.

    Returns:
        The PNG file.

    Raises:
        BrowserError: There is no browser, or it failed.
    """
    size = (f"--window-size={width},{height}", "--force-device-scale-factor=2", "--hide-scrollbars")
    return _render(drawing, "page.svg", "image.png", *size, "--screenshot={}")


def _render(text: str, name: str, output: str, *options: str) -> bytes:
    """Return the file that the browser writes for a page. The last option names the file.

    The browser takes the format of an image from the extension.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="broadside-", ignore_cleanup_errors=True) as base:
        source, target = Path(base, name), Path(base, output)
        source.write_text(text, encoding="utf-8")
        argv = [
            browser,
            "--headless",
            "--disable-gpu",
            # As root, Chromium does not start with its sandbox.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={base}/profile",
            *(option.format(target) for option in options),
            source.as_uri(),
        ]
        try:
            done = subprocess.run(
                argv,
                env=program_environment(),
                capture_output=True,
                timeout=BROWSER_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BrowserError(f"{browser}: no file within {BROWSER_TIMEOUT_S:g} s") from error
        if not target.is_file():
            errors = done.stderr.decode(errors="replace").strip().splitlines()
            raise BrowserError(
                f"{browser}: no file, exit code {done.returncode}: {errors[-1] if errors else ''}"
            )
        return target.read_bytes()
