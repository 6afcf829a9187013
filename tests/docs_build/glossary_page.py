"""Reference page of all terms.

``docs/glossary.csv`` has one line per term with the term, its meaning and its places of use. A test
compares the terms with the names of API fields, CLI options, page labels and metrics.
"""

import csv
from typing import Final

from tests.docs_build.constants_page import DOCS

HEAD: Final = """\
# Glossary

These terms have one meaning in the documentation, the API, the commands, the page and the code.

| term | meaning | used in |
| --- | --- | --- |"""


def read_terms() -> list[dict[str, str]]:
    """Return the lines of ``glossary.csv``."""
    with (DOCS / "glossary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def glossary_page() -> str:
    """Return the glossary as Markdown, sorted by term."""
    rows = sorted(read_terms(), key=lambda line: line["term"].lower())
    lines = [f"| {line['term']} | {line['meaning']} | {line['used']} |" for line in rows]
    return "\n".join([HEAD, *lines]) + "\n"
