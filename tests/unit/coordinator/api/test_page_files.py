"""Tests for the static files of the page, caching and the content security policy."""

import re

import httpx
import pytest
from fastapi import FastAPI

from broadside.coordinator.api import page_files as web
from broadside.coordinator.views.charts.theme import PALETTES, Theme


@pytest.fixture
def http() -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(web.router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page")


async def test_page_links_only_existing_versioned_files(
    http: httpx.AsyncClient,
) -> None:
    page = await http.get("/")
    named = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
    assert len(named) >= 4
    for path in named:
        answer = await http.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_imported_javascript_modules_exist(http: httpx.AsyncClient) -> None:
    modules = [name for name in web.site().assets if name.endswith(".js")]
    assert "app.js" in modules
    for name in modules:
        text = web.site().assets[name].content.decode()
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in modules, f"{name} imports {imported}"


@pytest.mark.parametrize("path", ["/", "/report.html"])
async def test_page_policy_allows_only_local_scripts(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"<script(?![^>]*\bsrc=)", answer.text) == []
    assert re.findall(r'\son\w+="|style="|<style', answer.text) == []
    assert "http" not in re.sub(r"http-equiv", "", answer.text)


async def test_page_is_revalidated_with_etag(http: httpx.AsyncClient) -> None:
    first = await http.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = await http.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_unknown_files_return_404(http: httpx.AsyncClient) -> None:
    base = f"/web/{web.site().version}"
    for name in ("nothing.js", "..%2Fsettings.py", "__init__.py"):
        assert (await http.get(f"{base}/{name}")).status_code == 404
    old = await http.get("/web/0123456789abcdef/app.css")
    assert old.headers["cache-control"] == "no-store"


def test_page_palette_matches_charts() -> None:
    text = web.palette()
    for theme in Theme:
        rule = re.search(rf":root\[data-theme={theme}\]{{(.*?)}}", text)
        assert rule is not None
        for name, colour in PALETTES[theme].items():
            assert f"--chart-{name}:{colour};" in rule[1]


def test_missing_page_folder_yields_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FOLDER", web.FOLDER / "nowhere")
    web.site.cache_clear()
    try:
        assert dict(web.site().pages) == {}
    finally:
        web.site.cache_clear()
