"""Hook of MkDocs that adds generated pages and drawings to the pages of ``docs/``.

``mkdocs.yml`` contains the name of this file. MkDocs calls the functions by name.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tests.docs_build.drawings import DRAWINGS
from tests.docs_build.reference_pages import PAGES

ROOT: Final = Path(__file__).parents[2]
# Pages of the root folder that are part of the site.
ROOT_PAGES: Final = ("CONTRIBUTING.md", "DECISIONS.md", "CHANGELOG.md")
# Theme files that current browsers do not request.
_UNUSED: Final = (
    *("*.map", "404.html", "sitemap.xml*"),
    *("webfonts/*.ttf", "webfonts/*brands*"),
)
_INLINE_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.S)
# The content security policy of the coordinator does not allow inline scripts. All pages have the
# same script, because they are in one folder.
_SCRIPT: Final = "js/site.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the drawings and the pages of the root folder."""
    for name, page in {**PAGES, **DRAWINGS}.items():
        files.append(File.generated(config, name, content=page()))
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Change links between ``docs/`` and the root folder, because the site has only one folder."""
    return markdown.replace("](docs/", "](").replace("](../", "](")


def on_post_page(output: str, config: MkDocsConfig, **_: Any) -> str:
    """Move the inline script of the theme to a file."""
    for script in _INLINE_SCRIPT.findall(output):
        path = Path(config.site_dir) / _SCRIPT
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    return _INLINE_SCRIPT.sub(f'<script src="{_SCRIPT}"></script>', output)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the files that the site does not need."""
    for pattern in _UNUSED:
        for path in Path(config.site_dir).glob(pattern if "/" in pattern else f"**/{pattern}"):
            path.unlink()
