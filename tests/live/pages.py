"""Reads a page as people do who cannot see it well: contrast, names, width, errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import ConsoleMessage, Page, Request

CHROMIUM = "/usr/bin/chromium"

_INSPECT = Path(__file__).with_suffix(".js").read_text("utf-8")


@dataclass(kw_only=True)
class Watched:
    """A page, and everything that it should not have done."""

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # requests that left the origin

    @classmethod
    def over(cls, page: Page, origin: str) -> Self:
        watched = cls(page=page, origin=origin)
        page.on("console", watched._said)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", watched._asked)
        return watched

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:", "about:")):
            self.strays.append(request.url)

    @contextmanager
    def refused(self, status: int) -> Iterator[None]:
        """One request is refused within; a browser says so, whatever the page does."""
        before = len(self.errors)
        with self.page.expect_console_message(lambda said: str(status) in said.text):
            yield
        (said,) = self.errors[before:]
        assert str(status) in said, said
        del self.errors[before:]

    def faults(self, theme: str, width: int) -> list[str]:
        """What is wrong for the eye at one theme and width."""
        self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_timeout(150)
        assert self.page.evaluate("document.documentElement.dataset.theme") == theme
        found: list[Any] = self.page.evaluate(_INSPECT)
        return [f"{theme} {width}: {each}" for each in found]

    def all_faults(self) -> list[str]:
        return [
            fault
            for width in (1280, 390)
            for theme in ("light", "dark")
            for fault in self.faults(theme, width)
        ]
