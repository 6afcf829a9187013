"""Tests for the documentation pages at /docs."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from broadside.coordinator.api import docs_site
from broadside.coordinator.auth.permissions import required_permission
from broadside.coordinator.auth.principal import Access


@pytest.fixture
def http() -> httpx.AsyncClient:
    app = FastAPI(docs_url=None)
    app.include_router(docs_site.router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    (folder / "css").mkdir(parents=True)
    (folder / "index.html").write_text("contents")
    (folder / "burst.svg").write_text("<svg/>")
    (folder / "css" / "base.css").write_text("a {}")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(docs_site, "FOLDER", folder)
    return folder


@pytest.mark.usefixtures("site")
async def test_pages_and_files_are_served(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs/")
    for path, text in (("", "contents"), ("burst.svg", "<svg/>"), ("css/base.css", "a {}")):
        answer = await http.get(f"/docs/{path}")
        assert (answer.status_code, answer.text) == (200, text)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "script-src 'unsafe-inline'" not in answer.headers["content-security-policy"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("path", ["nothing.html", "%2e%2e/secret", "..%2fsecret", "css/none.css"])
async def test_other_files_are_not_served(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(f"/docs/{path}")).status_code == 404


async def test_an_installation_without_the_site_explains_it(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_site, "FOLDER", tmp_path / "none")
    answer = await http.get("/docs/")
    assert (answer.status_code, "without the documentation" in answer.text) == (404, True)


@pytest.mark.parametrize("path", ["/docs", "/docs/", "/docs/verdict.html", "/docs/css/base.css"])
def test_no_token_is_needed(path: str) -> None:
    assert required_permission("GET", path).access is Access.OPEN
