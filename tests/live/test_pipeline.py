"""Test the pipeline definitions in deploy/ci with the vendors' validators and by execution."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from tests.live.live_site import Site, wait_for_fleet

ROOT = Path(__file__).parent.parent.parent
CI = ROOT / "deploy" / "ci"
# Use `make tools` to install it.
ACTIONLINT = ROOT / ".tools" / "actionlint" / "bin" / "actionlint"

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def load(*parts: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CI.joinpath(*parts).read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("mistake", [None, ("gates:", "gate:"), ("api:", "# api:")])
def test_workflow_and_action_pass_actionlint(
    mistake: tuple[str, str] | None, tmp_path: Path
) -> None:
    """Test inside a repository, because actionlint needs it to read the metadata of the action."""
    (tmp_path / ".git").mkdir()
    shutil.copytree(CI, tmp_path / "deploy" / "ci")
    workflow = tmp_path / ".github" / "workflows" / "firewall.yml"
    workflow.parent.mkdir(parents=True)
    text = (CI / "github" / "example.yml").read_text("utf-8")
    workflow.write_text(text.replace(*mistake) if mistake else text)
    done = subprocess.run(
        [ACTIONLINT], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == (0 if mistake is None else 1), done.stdout + done.stderr


@pytest.mark.parametrize("mistake", [None, ("bash:", "bahs:"), ("PublishTest", "Publish")])
def test_pipelines_match_the_published_schemas(
    mistake: tuple[str, str] | None, tmp_path: Path
) -> None:
    """Use the schemas of Microsoft and GitHub that check-jsonschema contains."""
    copied = Path(shutil.copytree(CI, tmp_path / "ci"))
    template = copied / "azure-devops" / "broadside.yml"
    if mistake is not None:
        template.write_text(template.read_text("utf-8").replace(*mistake))

    def check(schema: str, *files: Path) -> int:
        parts = ["--builtin-schema", f"vendor.{schema}", "--regex-variant", "nonunicode"]
        if schema == "azure-pipelines":
            parts += ["--data-transform", schema]
        command = [
            str(Path(sys.executable).with_name("check-jsonschema")),
            *parts,
            *map(str, files),
        ]
        return subprocess.run(command, check=False, timeout=60, capture_output=True).returncode

    if mistake is not None:
        assert check("azure-pipelines", template) == 1
        return
    assert check("azure-pipelines", template, copied / "azure-devops" / "example.yml") == 0
    assert check("github-actions", copied / "github" / "action.yml") == 0


def test_template_and_example_have_the_same_parameters() -> None:
    template, example = load("azure-devops", "broadside.yml"), load("azure-devops", "example.yml")
    declared = {item["name"]: item for item in template["parameters"]}
    [given] = [step["parameters"] for step in example["steps"] if "template" in step]
    assert set(given) <= set(declared)
    assert {name for name, item in declared.items() if "default" not in item} <= set(given)
    for name in declared:
        assert f"${{{{ parameters.{name} }}}}" in (CI / "azure-devops/broadside.yml").read_text()
    action, workflow = load("github", "action.yml"), load("github", "example.yml")
    [used] = [step["with"] for step in workflow["jobs"]["measure"]["steps"] if "./" in step["uses"]]
    assert set(used) <= set(action["inputs"])


def script_of(ci: str) -> str:
    """Return the shell script of the measuring step."""
    if ci == "github":
        return str(load("github", "action.yml")["runs"]["steps"][1]["run"])
    return str(load("azure-devops", "broadside.yml")["steps"][1]["bash"])


def test_steps_measure_compare_and_store_results(site: Site, tmp_path: Path) -> None:
    """Test comparisons to the baseline run.

    The first run is the baseline until another run is accepted. A slower run should be a
    regression, but not if it is compared to an accepted run. An aborted run should never be the
    baseline.
    """
    site.start_fleet(1)
    _, url = site.start_coordinator()
    wait_for_fleet(url, 2)
    results, summary = tmp_path / "results", tmp_path / "step-summary.md"
    overrides = "bursts=3\nburst=4s\nperiod=10s\n"
    environment = site.environment | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROADSIDE_API": url,
        "SCENARIO": "loopback",
        "GATES": "received < -30%\n",
        "RESULTS": str(results),
        "INCONCLUSIVE": "warn",
        "GITHUB_STEP_SUMMARY": str(summary),
        "MEASURE": str(CI / "measure.sh"),
        "ROOT": str(ROOT),
    }

    def step(ci: str, more: str = "", accept: str = "false") -> subprocess.CompletedProcess[str]:
        summary.unlink(missing_ok=True)
        return subprocess.run(
            ["bash", "-c", script_of(ci)],
            env=environment | {"OVERRIDES": overrides + more, "ACCEPT": accept},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    first = step("azure-devops")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "this is the baseline of the next ones" in (results / "summary.md").read_text()
    slow = "traffic.stream_bits_per_second=20M"
    accepting = ("--set", "labels.baseline=accepted")
    for ci, accept in (("github", "false"), ("azure-devops", "true")):
        stopped = site.run(
            "launch", "loopback", "--detach", *accepting, "--api", url
        ).stdout.strip()
        assert site.run("abort", stopped, "--reason", "a job was stopped", "--api", url).stdout
        slower = step(ci, slow, accept)
        assert slower.returncode == 1, slower.stdout + slower.stderr
        text = (results / "summary.md").read_text()
        assert "the change is beyond the limit" in text
        assert ("Accepted as the baseline" in text) == (accept == "true")
        if ci == "github":
            assert text in summary.read_text()
        else:
            assert f"##vso[task.uploadsummary]{results}/summary.md" in slower.stdout
        [gates] = JUnitXml.fromfile(str(results / "gates.xml"))
        assert (gates.tests, gates.failures) == (1, 1)
        [verdict] = JUnitXml.fromfile(str(results / "verdict.xml"))
        assert verdict.tests == 4
    again = step("github", slow)
    assert again.returncode == 0, again.stdout + again.stderr + (results / "summary.md").read_text()
