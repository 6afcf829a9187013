"""What deploy/ci gives pipelines: read by their own readers, and run as they run it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from tests.live.site import Site, wait_for

ROOT = Path(__file__).parent.parent.parent
CI = ROOT / "deploy" / "ci"
ACTIONLINT = shutil.which("actionlint")

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def load(*parts: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CI.joinpath(*parts).read_text("utf-8"))
    return loaded


@pytest.mark.skipif(ACTIONLINT is None, reason="needs actionlint on PATH (docs/pipeline.md)")
def test_the_workflow_and_its_action_satisfy_actionlint() -> None:
    done = subprocess.run(
        [str(ACTIONLINT), CI / "github" / "example.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_template_and_its_example_speak_of_the_same_parameters() -> None:
    template, example = load("azure-devops", "broadside.yml"), load("azure-devops", "example.yml")
    declared = {each["name"]: each for each in template["parameters"]}
    [given] = [step["parameters"] for step in example["steps"] if "template" in step]
    assert set(given) <= set(declared)
    assert {name for name, each in declared.items() if "default" not in each} <= set(given)
    for name in declared:
        assert f"${{{{ parameters.{name} }}}}" in (CI / "azure-devops/broadside.yml").read_text()
    action, workflow = load("github", "action.yml"), load("github", "example.yml")
    [used] = [step["with"] for step in workflow["jobs"]["measure"]["steps"] if "./" in step["uses"]]
    assert set(used) <= set(action["inputs"])


def script_of(ci: str) -> str:
    """The shell of the step that measures."""
    if ci == "github":
        return str(load("github", "action.yml")["runs"]["steps"][1]["run"])
    return str(load("azure-devops", "broadside.yml")["steps"][1]["bash"])


@pytest.mark.parametrize("ci", ["github", "azure-devops"])
def test_the_step_measures_compares_and_leaves_its_results(
    ci: str, site: Site, tmp_path: Path
) -> None:
    site.start_fleet(1)
    _, url = site.start_coordinator()
    wait_for("the agents", lambda: site.run("agents").stdout.count("idle") == 2)
    results, summary = tmp_path / "results", tmp_path / "step-summary.md"
    environment = site.environment | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BROADSIDE_API": url,
        "SCENARIO": "loopback",
        "OVERRIDES": "bursts=3\nburst=4s\nperiod=10s\n",
        "GATES": "received < -30%\n",
        "RESULTS": str(results),
        "INCONCLUSIVE": "warn",
        "GITHUB_STEP_SUMMARY": str(summary),
        "MEASURE": str(CI / "measure.sh"),
        "ROOT": str(ROOT),
    }

    def step(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script_of(ci)],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    first = step()
    assert first.returncode == 0, first.stdout + first.stderr
    assert "the gates begin with the next" in (results / "summary.md").read_text()
    slower = step(OVERRIDES=environment["OVERRIDES"] + "traffic.stream_bits_per_second=20M")
    assert slower.returncode == 1, slower.stdout + slower.stderr
    text = (results / "summary.md").read_text()
    assert "surely so" in text
    if ci == "github":
        assert text in summary.read_text()
    else:
        assert f"##vso[task.uploadsummary]{results}/summary.md" in slower.stdout
    [gates] = JUnitXml.fromfile(str(results / "gates.xml"))
    assert (gates.tests, gates.failures) == (1, 1)
    [verdict] = JUnitXml.fromfile(str(results / "verdict.xml"))
    assert verdict.tests == 4
