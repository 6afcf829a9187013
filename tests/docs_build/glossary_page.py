"""Reference page of all terms.

``docs/glossary.csv`` has one line per term with the term, its meaning, its places of use, and the
terms that can follow it in a name. A test compares the terms with the names of API fields, values,
schemas and events, commands, page labels, findings and metrics.
"""

import csv
from collections.abc import Mapping
from typing import Final

from tests.docs_build.constants_page import DOCS

HEAD: Final = """\
# Glossary

These terms have one meaning in the documentation, the API, the commands, the page and the code.

| term | meaning | used in | compounds |
| --- | --- | --- | --- |"""


def read_terms() -> list[dict[str, str]]:
    """Return the lines of ``glossary.csv``."""
    with (DOCS / "glossary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compounds_of(line: Mapping[str, str]) -> list[str]:
    """Return the terms that follow a term in a name."""
    return [term for term in line["before"].split("; ") if term]


def glossary_page() -> str:
    """Return the glossary as Markdown, sorted by term."""
    lines = []
    for line in sorted(read_terms(), key=lambda line: line["term"].lower()):
        term = line["term"]
        names = ", ".join(f"{term} {after}" for after in compounds_of(line))
        lines.append(f"| {term} | {line['meaning']} | {line['used']} | {names} |")
    return "\n".join([HEAD, *lines]) + "\n"
