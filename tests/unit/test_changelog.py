"""CHANGELOG.md has the form of keepachangelog.com and begins with the current version."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text("utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
SECTION_LINES_MAX = 80


def sections() -> dict[str, str]:
    """Each version's text, by its heading, in the file's order."""
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


def test_a_version_is_short_and_has_the_known_kinds_of_change() -> None:
    for heading, text in sections().items():
        assert {*re.findall(r"^### (.+)$", text, re.M)} <= KINDS, heading
        assert len(text.strip().splitlines()) < SECTION_LINES_MAX, heading
