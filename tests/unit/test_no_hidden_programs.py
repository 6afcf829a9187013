"""Test that files to be shipped or run by a user do not contain Python programs or run modules by
path.

Shell, Docker, YAML, units, Terraform and documents should call commands from the package. Other
tools cannot see the names imported in such texts, and will not update them when a name is
moved.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

# Files that are shipped, and files used to build them. Locks and Python files are not included.
SHIPPED: Final = ("deploy", "dashboards", "docs", ".ci")
NOT_TEXT: Final = frozenset(
    {".py", ".pyc", ".lock", ".json", ".js", ".css", ".svg", ".png", ".sum"}
)
# Folders written by programs, such as the documentation site.
BUILT: Final = frozenset({"__pycache__", "docs_site"})
# Documents about the past, and the pointer file for a worktree.
EXCLUDED: Final = frozenset({"CHANGELOG.md", "DECISIONS.md", ".git"})
# This file is never shipped, so it can run modules in tests and lab.
CHECKOUT: Final = "Makefile"
SHELL_BLOCK: Final = re.compile(r"^```(?:sh|bash|shell|console|yaml|toml)\n(.*?)^```", re.M | re.S)

# A Python interpreter, with flags that do not take a program.
PYTHON: Final = r"[^\s=]*(?i:python)[\w.}/)]*(?:[ \t]+-[WX][ \t]+\S+|[ \t]+-[A-Zb-ln-z]+(?=\s))*"
HIDDEN: Final = {
    "a program in an argument": re.compile(rf"{PYTHON}[ \t]+-[A-Za-z]*c(?![\w-])"),
    "a program on standard input": re.compile(rf"{PYTHON}[ \t]+(?:-(?=\s|$)|<<?)"),
    "a program from a pipe": re.compile(rf"\|\s*{PYTHON}[ \t]*(?:$|[;&|)])", re.M),
    "Python text": re.compile(
        r"^\s*(?:import [a-z_][\w.]*(?:, *[a-z_][\w.]*)*|from [a-z_][\w.]* import \w.*"
        r"|def \w+\(.*\).*:|class \w+(?:\(.*\))?:)\s*$",
        re.M,
    ),
    "a script without its ending": re.compile(r"\A#!.*python"),
}
MODULE: Final = re.compile(
    r"-m\s+(?:broadside\.)?(?:agent|coordinator|exchange|lab)\b|-m\s+broadside"
)


def shipped_files() -> Iterator[Path]:
    """Yield all text files in the checkout that are to be read by a user or a user's machine."""
    for folder in SHIPPED:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in NOT_TEXT and not BUILT & {*path.parts}:
                yield path
    for path in ROOT.iterdir():
        if (
            path.is_file()
            and path.suffix in (".md", ".yml", ".yaml", "")
            and path.name not in EXCLUDED
        ):
            yield path


def hidden_programs(text: str, *, modules: bool = True) -> list[str]:
    """Return the hidden programs in a text, each with its words.

    Args:
        text: Text of a shell script, a Dockerfile, a unit or a similar file.
        modules: Set to True to include modules of the package that are run by path.
    """
    # Join commands to one line, and write lists of arguments as the shell would see them.
    joined = re.sub(r"\\\n", " ", text)
    plain = re.sub(r"""["'\[\],]+""", " ", joined)
    results = [
        f"{kind}: {match.group().strip()[:80]}"
        for kind, pattern in HIDDEN.items()
        for match in pattern.finditer(joined if kind == "Python text" else plain)
    ]
    if modules:
        results += [f"a module by its path: {match.group()}" for match in MODULE.finditer(plain)]
    return results


def hidden_in_file(path: Path) -> list[str]:
    """Return the hidden programs in a file. In a document, only command blocks and quotes are
    searched."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return hidden_programs(text, modules=path.name != CHECKOUT)
    quoted = "\n".join(f"`{parts}`" for parts in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text))
    return hidden_programs("\n".join(SHELL_BLOCK.findall(text))) + hidden_programs(quoted)


FILES: Final = sorted(shipped_files())


def test_all_kinds_of_shipped_files_are_checked() -> None:
    names = {str(path.relative_to(ROOT)) for path in FILES}
    assert {
        "deploy/docker/Dockerfile",
        "docker-compose.yml",
        "deploy/azure/bundle/install.sh",
        "deploy/azure/modules/boot/cloud-init.yaml.tftpl",
        "deploy/azure/modules/boot/files/broadside-agent.service",
        "deploy/hosts/install.sh",
        "deploy/hosts/broadside",
        "deploy/ci/github/action.yml",
        "Makefile",
        "docs/api.md",
        "README.md",
    } <= names
    assert len(names) > 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_file_has_no_hidden_program(path: Path) -> None:
    assert hidden_in_file(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "python -c 'import broadside'",
        "python3 -c 'print(1)'",
        "python3.13 -Ic 'print(1)'",
        'env A=b "$python" -c "import sys"',
        "/opt/broadside/venv/bin/python -W ignore -c \\\n  'print(1)'",
        'ExecStopPost=-/opt/broadside/venv/bin/python -P -c "print(1)"',
        "\t@$(BIN)/python -c 'print(1)'",
        '"${venv}/bin/python" -c "$program"',
        'RUN ["python", "-c", "from agent.gate import find_gate; assert find_gate()"]',
        "test: [CMD, python3, -c, 'print(1)']",
        "runcmd:\n  - [ /usr/bin/python3, '-c', 'print(1)' ]",
        "found=$(broadside runs -o json | python3 -c '\nimport json')",
        "python3 - <<'END'\nprint(1)\nEND",
        "python3 - a b <prog",
        "python3 <<END\nprint(1)\nEND",
        "cat program | python3",
        "found=$(cat program | /usr/bin/python3)",
        "cat >check.py <<'END'\nfrom broadside.agent.gate import find_gate\nEND",
        "cat >check <<'END'\nimport os, sys\nEND",
        "write_files:\n  - content: |\n      def main() -> None:\n          pass",
        "#!/usr/bin/env python3\nprint(1)",
        "ExecStart=/opt/broadside/venv/bin/python -m broadside.agent",
        "python3 -P -m broadside.coordinator serve",
        'off = ["/opt/venv/bin/python", "-m", "broadside.coordinator.device.policy_switch"]',
        "python -m agent.check",
    ],
)
def test_hidden_program_is_detected(text: str) -> None:
    assert hidden_programs(f"set -eu\n{text}\n" if not text.startswith("#!") else text)


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m venv /opt/broadside/venv",
        "$venv/bin/python -W ignore -m compileall -qq -x '/pip/' lib",
        "python3 -m pip install -c constraints.txt -r requirements.lock",
        "apt-get install -y python3 python3-venv",
        "python3 deploy/write_bytecode.py",
        "[ -n \"$python\" ] || stop 'no Python 3.11'",
        "for name in python3.13 python3.12; do command -v $name; done",
        "pip --python /opt/venv/bin/python install -r lock",
        "broadside agent --check --role client",
        "sh -c 'broadside serve'",
        "echo import it from there",
        "which python3 | head -1",
    ],
)
def test_other_text_is_not_reported(text: str) -> None:
    assert hidden_programs(text) == []
