"""Site of the documentation, from ``dashboards/docs_site``, at ``/docs/``.

The build writes the site. The pages contain no secret, so these routes require no token.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "docs_site"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; style-src 'self'; style-src-attr 'unsafe-inline'"
)
# Drawings contain their own styles.
_SVG_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def redirect_to_docs() -> Response:
    """Redirect to the address with a slash, because the links of the pages are relative."""
    return RedirectResponse("/docs/", headers=_HEADERS)


@router.get("/docs/")
async def read_docs_index(request: Request) -> Response:
    """Return the first page."""
    return await _read("index.html", request)


@router.get("/docs/{name}")
async def read_docs_page(name: str, request: Request) -> Response:
    """Return a page or drawing."""
    return await _read(name, request)


@router.get("/docs/{folder}/{name}")
async def read_docs_file(folder: str, name: str, request: Request) -> Response:
    """Return a file of the theme or of the search."""
    return await _read(f"{folder}/{name}", request)


async def _read(path: str, request: Request) -> Response:
    if not FOLDER.is_dir():
        text = "This installation was built without the documentation.\n"
        return Response(text, 404, _HEADERS, "text/plain")
    response = await StaticFiles(directory=FOLDER).get_response(path, request.scope)
    policy = _SVG_POLICY if path.endswith(".svg") else _POLICY
    response.headers.update({**_HEADERS, "Content-Security-Policy": policy})
    return response
