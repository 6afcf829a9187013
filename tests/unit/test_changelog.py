"""Test that CHANGELOG.md has the keepachangelog.com format and starts with the current version."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
SECTION_LINES_MAX = 80


def sections() -> dict[str, str]:
    """Return the text for each version by its heading, in file order."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_versions_follow_an_unreleased_section() -> None:
    unreleased, *versions = sections()
    assert unreleased == "[Unreleased]"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", versions[0])
    for heading in versions:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading)
    assert versions[-1].startswith("[0.9.0]")


def test_versions_are_short_and_use_the_standard_headings() -> None:
    for heading, text in sections().items():
        assert {*re.findall(r"^### (.+)$", text, re.M)} <= KINDS, heading
        assert len(text.strip().splitlines()) < SECTION_LINES_MAX, heading
