"""Static files of the live page, from ``dashboards/web``.

``/`` and ``/report.html`` are requested each time. All other files are below ``/web/<version>/``
and never change, so browsers cache them. The version is a digest of all files. The pages contain
no secret, so these routes require no token.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from broadside.coordinator.api.conditional import matches
from broadside.coordinator.views.charts.theme import HEAT, PALETTES, Theme
from broadside.coordinator.views.page_labels import page_labels

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "web"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PALETTE: Final = "palette.css"
WORDS: Final = "words.js"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
)
POLICIES: Final = {
    "index.html": f"{_POLICY}style-src 'self'",
    # The report contains its own styles and no scripts. It is shown in a sandboxed frame.
    "report.html": f"{_POLICY}style-src 'self' 'unsafe-inline'; font-src data:",
}
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file with its content."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFiles:
    """All page files, read once."""

    version: str
    pages: Mapping[str, PageFile]
    assets: Mapping[str, PageFile]


@cache
def site() -> PageFiles:
    """Return all page files. There are no pages without ``dashboards/web``."""
    paths = sorted(FOLDER.glob("*")) if FOLDER.is_dir() else []
    texts = {path.name: path.read_bytes() for path in paths if path.suffix in _TYPES}
    texts[PALETTE] = palette().encode()
    texts[WORDS] = page_labels().encode()
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(name.encode() + text)
    version = digest.hexdigest()[:16]
    pages: dict[str, PageFile] = {}
    assets: dict[str, PageFile] = {}
    for name, text in texts.items():
        media_type = _TYPES[Path(name).suffix]
        if name.endswith(".html"):
            text = text.replace(b"{{base}}", f"/web/{version}".encode())
            pages[name] = PageFile(content=text, media_type=media_type)
        else:
            assets[name] = PageFile(content=text, media_type=media_type)
    return PageFiles(version=version, pages=pages, assets=assets)


def palette() -> str:
    """Return the chart colours as CSS variables, to be used by page and report."""
    rules = []
    for theme in Theme:
        colours = "".join(f"--chart-{name}:{value};" for name, value in PALETTES[theme].items())
        rules.append(f":root[data-theme={theme}]{{{colours}}}")
    heat = "".join(f"--heat-{index}:{colour};" for index, (_, colour) in enumerate(HEAT))
    return "\n".join([f":root{{{heat}}}", *rules, ""])


router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/report.html")
async def read_page(request: Request) -> Response:
    """Return a page, or 304 if the browser has the current version."""
    name = request.url.path.removeprefix("/") or "index.html"
    page = site().pages.get(name)
    needs_token = getattr(request.app.state, "needs_token", False)
    etag = f'"{site().version}-{"token" if needs_token else "open"}"'
    if page is None:
        text = "This installation has no web page: install the wheel, or run from a checkout.\n"
        return Response(text, 404, _HEADERS, "text/plain")
    headers = {
        **_HEADERS,
        "Content-Security-Policy": POLICIES[name],
        "Cache-Control": "no-cache",
        "ETag": etag,
    }
    if matches(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    content = page.content.replace(b"{{needs-token}}", b"yes" if needs_token else b"no")
    return Response(content, headers=headers, media_type=page.media_type)


@router.get("/web/{version}/{name}")
async def read_asset(version: str, name: str, request: Request) -> Response:
    """Return a page file. For an old version, return the current file without caching."""
    current_site = site()
    file = current_site.assets.get(name)
    if file is None:
        return Response(f"{name}: no such file of the page\n", 404, _HEADERS, "text/plain")
    current = version == current_site.version
    headers = {
        **_HEADERS,
        "Cache-Control": "public, max-age=31536000, immutable" if current else "no-store",
        "ETag": f'"{current_site.version}"',
    }
    if matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
