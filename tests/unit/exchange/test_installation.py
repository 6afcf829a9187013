"""Tests for installation hints. The commands should exist on the host where they are used."""

import re
from pathlib import Path
from typing import Final

import pytest

from broadside.exchange.installation import (
    bring,
    bring_by_script,
    bring_extra,
    bring_gate,
    bring_recent_iperf3,
    in_checkout,
)

ROOT: Final = Path(__file__).parents[3]
SHIPPED: Final = ("agent", "coordinator", "dashboards", "exchange", "lab")
ONLY_HERE: Final = Path("exchange/installation.py")
CALLS: Final = re.compile(r"\b(bring\w*)\((?:[^()]|\([^()]*\))*\)", re.S)
TARGETS: Final = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
OF_A_CHECKOUT: Final = re.compile(
    rf"\bmake (?:{'|'.join(TARGETS)})\b(?! \w+ed)|\.venv/bin|\bsh deploy/|pip install '?broadside"
)


def test_installed_copy_is_not_a_checkout(tmp_path: Path) -> None:
    assert in_checkout()
    assert not in_checkout(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert not in_checkout(tmp_path), "a folder of another project"


@pytest.mark.parametrize(
    ("here", "installed"),
    [
        (
            bring("apt-get install lftp", target="tools"),
            bring("apt-get install lftp", target="tools", root=Path("/")),
        ),
        (bring_extra("azure"), bring_extra("azure", root=Path("/"))),
        (bring_gate(), bring_gate(root=Path("/"))),
        (bring_recent_iperf3("3.17"), bring_recent_iperf3("3.17", root=Path("/"))),
    ],
)
def test_only_a_checkout_gets_make_commands(here: str, installed: str) -> None:
    assert "make " in here
    assert "make" not in installed
    assert "install" in installed


def test_hint_names_a_checkout_script() -> None:
    assert bring_by_script("sh x.sh") == "run `sh x.sh`"
    assert "only a checkout" in bring_by_script("sh x.sh", root=Path("/"))


def test_no_other_text_has_a_checkout_command() -> None:
    by_name = {}
    for folder in SHIPPED:
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.suffix in (".py", ".js", ".html", ".j2", ".toml", ".css", ".json")
            is_built = "docs_site" in path.parts
            if not is_text or is_built or not path.is_file() or path.relative_to(ROOT) == ONLY_HERE:
                continue
            text = CALLS.sub("", path.read_text("utf-8"))
            if hits := [match[0] for match in OF_A_CHECKOUT.finditer(text)]:
                by_name[str(path.relative_to(ROOT))] = hits
    assert by_name == {}


@pytest.mark.parametrize(
    "text",
    ['fix="run make tools"', "`make setup`", ".venv/bin/broadside", "sh deploy/x"],
)
def test_checkout_command_is_detected(text: str) -> None:
    assert OF_A_CHECKOUT.search(text)
    assert CALLS.sub("", 'fix=bring("a (b)", target="tools")') == "fix="
