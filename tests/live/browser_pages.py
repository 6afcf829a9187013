"""Browser checks for contrast, accessible names, width and errors of a page."""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Page, Request, expect
from playwright.sync_api import Error as PlaywrightError

from broadside.lab.namespaces import inside

CHROMIUM = "/usr/bin/chromium"

expect.set_options(timeout=30_000)

# Chromium ends requests if a network interface appears or disappears, as labs of other tests do.
_CHANGED = "ERR_NETWORK_CHANGED"
_INSPECT = Path(__file__).with_suffix(".js").read_text("utf-8")
_VIOLATIONS = "axe.run({resultTypes: ['violations']}).then((seen) => seen.violations)"


@dataclass(kw_only=True)
class MonitoredPage:
    """Page with recorded errors and forbidden requests.

    Attributes:
        foreign_requests: Requests to other origins.
        failed_requests: Requests without a response, with the browser's reason.
    """

    page: Page
    origin: str
    errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)
    failed_requests: list[str] = field(default_factory=list)

    @classmethod
    def over(cls, page: Page, origin: str) -> Self:
        monitored = cls(page=page, origin=origin)
        page.on("console", monitored._on_console)
        page.on("pageerror", lambda error: monitored.errors.append(str(error)))
        page.on("request", monitored._on_request)
        page.on("requestfailed", monitored._on_failure)
        return monitored

    def print_state(self) -> None:
        """Print what explains a failed test. pytest shows it only if the test has failed."""
        parts = {
            "address of the page": [self.page.url],
            "console": self.errors,
            "failed requests": self.failed_requests,
            "text of the page": [self.page.locator("body").inner_text()],
        }
        for title, lines in parts.items():
            sys.stdout.write("\n  ".join([f"{title}:", *lines]) + "\n")

    def open(self, url: str) -> None:
        """Open a page. Repeat this if a network of another test has interrupted it."""
        for _ in range(5):
            try:
                self.page.goto(url)
            except PlaywrightError as error:
                if _CHANGED not in str(error):
                    raise
            else:
                return

    def _on_failure(self, request: Request) -> None:
        self.failed_requests.append(f"{request.method} {request.url}: {request.failure}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and _CHANGED not in message.text:
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:", "about:")):
            self.foreign_requests.append(request.url)

    @contextmanager
    def refused(self, status: int) -> Iterator[None]:
        """Expect exactly one request to fail with ``status``.

        The browser logs this error in any case, so it is removed from ``errors`` at the end.
        """
        before = len(self.errors)
        with self.page.expect_console_message(lambda text: str(status) in text.text):
            yield
        (text,) = self.errors[before:]
        assert str(status) in text, text
        del self.errors[before:]

    def faults(self, theme: str, width: int, *, by_axe: bool = True) -> list[str]:
        """Return the visual and accessibility faults for a theme and a width."""
        self._set_media(theme, width)
        expect(self.page.locator("html")).to_have_attribute("data-theme", theme)
        return self._inspected(theme, width, by_axe=by_axe)

    def file_faults(self, theme: str, width: int) -> list[str]:
        """Return the faults of a page without a theme switch, for example a saved report."""
        self._set_media(theme, width)
        return self._inspected(theme, width, by_axe=True)

    def _set_media(self, theme: str, width: int) -> None:
        self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        self.page.set_viewport_size({"width": width, "height": 900})

    def _inspected(self, theme: str, width: int, *, by_axe: bool) -> list[str]:
        self.page.wait_for_timeout(150)
        result: list[Any] = self.page.evaluate(_INSPECT)
        if by_axe:
            result += self._axe_faults()
        return [f"{theme} {width}: {item}" for item in result]

    def _axe_faults(self) -> list[str]:
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        return [
            f"axe {broken['id']}: {', '.join(node['target'][0] for node in broken['nodes'][:3])}"
            for broken in self.page.evaluate(_VIOLATIONS)
        ]

    def paper_faults(self) -> list[str]:
        """Return the visual faults of the printed page, printed from the dark theme."""
        self.page.emulate_media(color_scheme="dark")
        expect(self.page.locator("html")).to_have_attribute("data-theme", "dark")
        # Use the viewport of A4 paper within its margins.
        self.page.set_viewport_size({"width": 718, "height": 1047})
        self.page.emulate_media(color_scheme="dark", media="print")
        self.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        result: list[str] = self.page.evaluate(_INSPECT)
        self.page.evaluate("dispatchEvent(new Event('afterprint'))")
        self.page.emulate_media(color_scheme="dark", media="screen")
        expect(self.page.locator("html")).to_have_attribute("data-theme", "dark")
        return [f"paper: {item}" for item in result]

    def all_faults(self) -> list[str]:
        """Return the faults for both themes and widths.

        Use the order with the fewest redraws. Axe is slow, so every theme and every width should be
        checked with it only once.
        """
        return [
            *self.faults("light", 1280),
            *self.faults("dark", 1280, by_axe=False),
            *self.faults("dark", 390),
            *self.faults("light", 390, by_axe=False),
        ]


# A browser in an isolated network -----------------------------------------------------------------


@contextmanager
def quiet_chromium(namespace: str, port: int, folder: Path) -> Iterator[Path]:
    """Return a Chromium launcher for a namespace with a loopback port of the host.

    Chromium aborts loads (ERR_NETWORK_CHANGED) if a network is added or removed, and labs of
    other tests do that all the time.
    """
    with inside(namespace):
        listener = socket.create_server(("127.0.0.1", port))
    script = folder / "chromium"
    script.write_text(f'#!/bin/sh\nexec ip netns exec {namespace} {CHROMIUM} "$@"\n')
    script.chmod(0o755)
    loop = asyncio.new_event_loop()
    relaying = loop.create_task(_relay(listener, port))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(relaying)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield script
    finally:
        loop.call_soon_threadsafe(relaying.cancel)
        thread.join()


async def _relay(listener: socket.socket, port: int) -> None:
    """Relay connections from a listener until the task is cancelled."""
    connections: set[asyncio.Task[None]] = set()

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, requests), _copy(answers, writer))

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(hand_on(reader, writer)))

    async with await asyncio.start_server(begin, sock=listener) as server:
        try:
            await server.serve_forever()
        finally:
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        # The connection may already be closed by the other end.
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
