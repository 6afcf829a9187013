"""The support bundle of real runs: it has no secret, and it names a planted fault by itself."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from broadside.exchange.messages import Role
from broadside.lab import azure_services, network
from broadside.lab.privileges import Rights, find_rights
from broadside.lab.site import in_use
from tests.azure_emulator.applied import read_fixture
from tests.live.live_site import BROADSIDE, GENTLE, HTTP, ROOT, Site, call, kill, wait_for_fleet
from tests.live.waiting import wait_for
from tests.unit.coordinator.cli.test_support_redaction import encodings

pytestmark = pytest.mark.live

SECRETS: Final = {
    "BROADSIDE_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "BROADSIDE_TOKEN": "broadside_Qm3vT8xZ1pL6kR9sW2yB7nC4dF5gH0jK",
    "BROADSIDE_FW_COMMUNITY": "pr1v4te+c0mmunity/of=fw",
    "ARM_CLIENT_SECRET": "Q8~client.secret_of-terraform",
    "HTTPS_PROXY_PASSWORD": "pa$$ of the proxy",
}
SETTINGS: Final = [f"--set={name}={value}" for name, value in GENTLE.items() if value is not None]


def bundle_files(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: stream.read().decode()
            for member in archive
            if (stream := archive.extractfile(member)) is not None
        }


def leaks(files: Mapping[str, str], secrets: set[str]) -> list[str]:
    return [
        f"{name}: {form} of {secret[:4]}..."
        for secret in secrets
        for form, shown in encodings(secret).items()
        for name, text in files.items()
        if shown in text
    ]


def stored_secrets(*folders: Path) -> Iterator[str]:
    """Yield keys and credentials in the files of a run."""
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes().decode(errors="replace")
        if "PRIVATE KEY-----" in text:
            yield from (line for line in text.splitlines() if len(line) > 30 and line[0] != "-")
        yield from re.findall(r"\b(?:bsa_[\w-]{20,}|bsj\.[\w-]+\.[\w-]+)", text)
        if path.name == "credential.json":
            yield from (str(value) for name, value in json.loads(text).items() if name == "secret")


@pytest.mark.skipif(find_rights().rights is not Rights.ROOT, reason="the demo stays, as root")
def test_bundle_of_a_demo_has_no_secret(tmp_path: Path) -> None:
    """Agents enroll with join codes and use HTTPS, so the run has keys, codes and credentials."""
    environment = {
        **{name: value for name, value in os.environ.items() if "BROADSIDE" not in name},
        **SECRETS, "BROADSIDE_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": f"{ROOT / 'src'}",
        "BROADSIDE_LOG_LEVEL": "DEBUG", "BROADSIDE_AGENT_LOG_LEVEL": "DEBUG",
    }  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BROADSIDE, *words], env=environment, cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip

    small = ("--pairs", "2", "--seconds", "4", "--bursts", "1", "--streams", "2")
    demo = run("demo", "--fabric", "http", "--keep", *small)
    stored = re.search(r"stored: (\S+)", demo.stdout + demo.stderr)
    prefix = re.search(r"lab (\w+) is not removed", demo.stdout + demo.stderr)
    assert stored, demo.stderr
    assert prefix, demo.stderr
    try:
        folder = Path(stored[1])
        # What a user adds by hand can have the output of any program.
        notes = folder / "logs" / "notes.log"
        notes.write_text("\n".join(
            f"{name}: {shown}" for secret in SECRETS.values()
            for name, shown in encodings(secret).items()
        ))  # fmt: skip
        done = run("support-bundle", "-f", "bundle.tar.gz", "--logs", str(folder))
        assert done.returncode == 0, done.stderr
        files = bundle_files(tmp_path / "bundle.tar.gz")
        secrets = {*SECRETS.values(), *stored_secrets(folder, tmp_path / "data")}
        assert len(secrets) > len(SECRETS) + 3
        assert leaks(files, secrets) == []
        assert "checks.json" in files
        assert any(name.startswith("runs/") for name in files)
        assert sum(name.startswith("logs/") for name in files) >= 4
    finally:
        # `lab down` would also remove the labs that others keep.
        with in_use(prefix[1]):
            network.down(prefix[1])


def test_bundle_of_local_azure_services_has_no_secret(tmp_path: Path) -> None:
    """Connection strings and a token are in the environment, and the SDKs log at debug level."""
    folder = tmp_path / "site"
    folder.mkdir()
    with azure_services.standing(tmp_path / "azure") as azure, Site(folder) as site:
        logged = {"BROADSIDE_LOG_LEVEL": "DEBUG", "BROADSIDE_AGENT_LOG_LEVEL": "DEBUG"}
        site.environment |= azure.fabric() | logged | {"BROADSIDE_SIGN_IN": "on"}
        token = site.run("token", "add", "me", "--role", "operator").stdout.strip()
        site.environment |= SECRETS | {"BROADSIDE_TOKEN": token}
        _, url = site.start_coordinator()
        site.start_fleet(1)
        headers = {"Authorization": f"Bearer {token}"}

        def well() -> bool:
            listed = HTTP.get(f"{url}/v1/agents", headers=headers).json()
            return len(listed) == 2

        wait_for("agents", well, 120)
        done = site.run("support-bundle", "-f", "b.tar.gz", "--api", url, "--logs", str(folder))
        assert done.returncode == 0, done.stderr
    files = bundle_files(folder / "b.tar.gz")
    texts = azure.fabric().values()
    keys = {key for text in texts for key in re.findall(r"(?:AccessKey|AccountKey)=([^;]+)", text)}
    assert len(keys) == 2
    assert leaks(files, {*keys, token, *SECRETS.values()} - {SECRETS["BROADSIDE_TOKEN"]}) == []
    assert len(json.loads(files["agents.json"])) == 2


# Planted faults ----------------------------------------------------------------------------------


def engine_is_gone(site: Site) -> None:
    site.start_agent(Role.CLIENT, "c1")
    site.start_agent(Role.SERVER, "s1", iperf3="/opt/missing/iperf3")


def clock_is_free(site: Site) -> None:
    site.start_agent(Role.SERVER, "s1")
    site.start_agent(Role.CLIENT, "c1", chronyc_socket=site.folder / "no-chronyd.sock")


def counter_file_is_gone(site: Site) -> None:
    site.start_fleet(1)
    telemetry = site.folder / "telemetry.toml"
    telemetry.write_text(
        '[[source]]\ndevice = "fw"\ntype = "csv"\nfile = "exported.csv"\n'
        'byte_counter = { column = "bytes", unit = "bytes" }\n'
    )
    site.environment["BROADSIDE_TELEMETRY_FILE"] = str(telemetry)


def target_is_not_allowed(site: Site) -> None:
    site.start_agent(Role.SERVER, "s1")
    site.start_agent(Role.CLIENT, "c1", allowed_networks="10.99.0.0/16")


def agent_dies_in_the_burst(site: Site) -> None:
    site.start_fleet(1)


FAULTS: Final[Mapping[str, tuple[Callable[[Site], None], str]]] = {
    "the engine of a server is missing": (engine_is_gone, r"s1.*iperf3"),
    "a client's clock is not synchronised": (clock_is_free, r"c1.*clock"),
    "the device counter's file is gone": (counter_file_is_gone, r"fw.*exported\.csv"),
    "a client may not send to the servers": (target_is_not_allowed, r"pair.*10\.99\.0\.0|allowed"),
    "an agent dies in the burst": (agent_dies_in_the_burst, r"pair|c1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bundle_alone_names_the_planted_fault(name: str, tmp_path: Path) -> None:
    plant, expected = FAULTS[name]
    with Site(tmp_path) as site:
        plant(site)
        _, url = site.start_coordinator()
        if plant in (engine_is_gone, clock_is_free):
            wait_for("agents", lambda: len(call(url, "GET", "/v1/agents")) == 2, 120)
        else:
            wait_for_fleet(url, 2)
        arguments = ["--set=pairs_count=1", "--set=burst_s=5", *SETTINGS]
        run = site.start("launch", "launch", "smoke", "--api", url, *arguments)
        if plant is agent_dies_in_the_burst:
            wait_for("traffic", lambda: is_running(url), 90)
            kill(site.agents["c1"])
        run.wait(150)
        done = site.run("support-bundle", "-f", "b.tar.gz", "--api", url, "--logs", str(tmp_path))
        assert done.returncode == 0, done.stderr
    causes = read_elsewhere(tmp_path / "b.tar.gz", tmp_path)
    assert re.search(expected, causes[0]), "\n".join(causes)


def is_running(url: str) -> bool:
    runs: list[dict[str, Any]] = call(url, "GET", "/v1/runs")
    if not runs:
        return False
    bursts = call(url, "GET", f"/v1/runs/{runs[0]['run_id']}")["bursts"]
    return bool(bursts) and bursts[0]["phase"] == "running"


def read_elsewhere(bundle: Path, folder: Path) -> list[str]:
    """Return the causes that another host reads from the bundle."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(bundle, elsewhere / "received.tar.gz")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "broadside.coordinator", "support-bundle", "--read",
         "received.tar.gz"],
        env=environment, cwd=elsewhere, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[1:]


def test_bundle_of_a_range_names_the_role_that_is_missing(tmp_path: Path) -> None:
    """Terraform and az are stubs that answer as they did for a stored range."""
    state = read_fixture("other-appliance")["state"]
    module = state["values"]["root_module"]
    for child in [module, *module["child_modules"]]:
        child["resources"] = [item for item in child.get("resources", ()) if not (
            item["type"] == "azurerm_role_assignment" and item["values"].get(
                "role_definition_name") == "Storage Table Data Contributor"
            and "results" in item["values"]["scope"] and "servers" in json.dumps(item["address"])
        )]  # fmt: skip
    key = "c3RvcmFnZS1hY2NvdW50LWtleS1vZi10aGUtcmFuZ2U="
    module["child_modules"][0].setdefault("resources", []).append({
        "mode": "managed", "type": "azurerm_storage_account_extra", "address": "x", "name": "x",
        "values": {"id": "x", "primary_access_key": key},
    })  # fmt: skip
    range_folder, programs = tmp_path / "range", tmp_path / "bin"
    for folder in (range_folder, programs):
        folder.mkdir()
    (range_folder / "terraform.tfstate").write_text(json.dumps({"key": key}))
    (range_folder / ".terraform").mkdir()
    (tmp_path / "state.json").write_text(json.dumps(state))
    terraform = programs / "terraform"
    terraform.write_text(
        f'#!/bin/sh\ncase "$*" in *show*) cat {tmp_path}/state.json;; *version*) echo Terraform;; '
        "*) echo '{}';; esac\n"
    )
    terraform.chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    argv = [*BROADSIDE, "support-bundle", "-f", "b.tar.gz", "--directory", str(range_folder)]
    done = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert leaks(bundle_files(tmp_path / "b.tar.gz"), {key}) == []
    causes = read_elsewhere(tmp_path / "b.tar.gz", tmp_path)
    assert re.search(r"server .*role", causes[0]), "\n".join(causes)
