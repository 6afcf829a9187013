"""Test that a run with all kinds of secrets does not write them to files, logs or output."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from broadside.coordinator.auth.permissions import PERMISSIONS
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.ports import ExchangeError
from broadside.lab import azure_services
from tests.live.live_site import HTTP, PACED, Site, wait_for_fleet
from tests.live.process_list import ProcessList
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

ALLOWED: Final = ("BROADSIDE_", "SharedAccessKey")


def _stored(site: Site) -> Iterator[bytes]:
    """Return every row of every table as text."""

    async def read() -> list[bytes]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in site.environment.items():
                patch.setenv(name, value)
            settings = FabricSettings()
        from azure.data.tables.aio import TableServiceClient

        secret = settings.tables_connection_string
        assert secret is not None
        results: list[bytes] = []
        async with TableServiceClient.from_connection_string(secret.get_secret_value()) as service:
            async for table in service.list_tables():
                async with service.get_table_client(table.name) as client:
                    results += [repr(dict(row)).encode() async for row in client.list_entities()]
        fabric = open_fabric(settings)
        with contextlib.suppress(ExchangeError):
            results += [repr(item).encode() for item in await fabric.queue.dead_letters()]
        await fabric.close()
        return results

    yield from asyncio.run(read())


def test_run_data_and_output_contain_no_secret(tmp_path: Path) -> None:
    azure_folder, folder = tmp_path / "azure", tmp_path / "site"
    folder.mkdir()
    # The content by its location.
    seen: dict[str, bytes] = {}
    with (
        azure_services.standing(azure_folder) as azure,
        # Use real processes, because the test needs to read the arguments.
        Site(folder, as_users_do=True) as site,
    ):
        site.environment |= azure.fabric() | {
            "BROADSIDE_SIGN_IN": "on",
            "BROADSIDE_LOG_LEVEL": "DEBUG",
            "BROADSIDE_AGENT_LOG_LEVEL": "DEBUG",
        }
        keys = {
            result
            for value in azure.fabric().values()
            for result in re.findall(r"(?:SharedAccessKey|AccountKey)=([^;]+)", value)
        }
        assert len(keys) == 2
        made = site.run("token", "add", "me", "--role", "operator")
        token = made.stdout.strip()
        secrets = {*keys, token}
        watch = ProcessList()
        with watch.recording():
            _, url = site.start_coordinator()
            site.start_fleet(1)
            _use(site, url, token, seen)
        assert any(b"iperf3" in argument for argument in watch.arguments), (
            "no engine process was recorded"
        )
        assert any(
            b"--token-file" in argument or b"coordinator" in argument
            for argument in watch.arguments
        )
        seen["process list"] = b"\n".join(watch.arguments)
        seen["tables"] = b"\n".join(_stored(site))
        assert b"measured" in b"".join(seen.values())
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "me.token":
            seen[str(path.relative_to(folder))] = path.read_bytes()
    assert any(place.startswith("serve") for place in seen)
    leaks = [
        f"{place}: {secret[:4]}..."
        for place, text in seen.items()
        for secret in secrets
        if secret.encode() in text
    ]
    assert leaks == []


def _use(site: Site, url: str, token: str, seen: dict[str, bytes]) -> None:
    """Execute a run, then use all API requests with valid and invalid arguments."""
    headers = {"Authorization": f"Bearer {token}"}

    def request(method: str, path: str, **options: object) -> httpx.Response:
        given = {"headers": headers, **options}
        answer = HTTP.request(method, url + path, **given)  # type: ignore[arg-type]
        shown = f"{answer.status_code} {answer.headers} {answer.text}"
        seen[f"{method} {path} {len(seen)}"] = shown.encode()
        return answer

    wait_for_fleet(url, 2, headers=headers)
    file = site.folder / "me.token"
    file.write_text(token)
    small = (
        "--set=pairs_count=1",
        "--set=bursts_count=1",
        "--set=burst_s=3",
        "--set=lead_s=8",
        PACED,
    )
    done = site.run("launch", "smoke", *small, "--api", url, "--token-file", str(file))
    seen["launch"] = (done.stdout + done.stderr).encode()
    run_id = request("GET", "/v1/runs").json()[0]["run_id"]
    wait_for("a verdict", lambda: request("GET", f"/v1/runs/{run_id}/summary").status_code == 200)
    names = {"run_id": run_id, "pair": "pair-001", "burst": "1", "name": "residual"}
    names |= {
        "study_id": "x",
        "sequence_number": "1",
        "agent_id": "x",
        "version": "0",
        "folder": "search",
    }
    for method, template, _ in PERMISSIONS:
        if template.endswith("/events"):
            continue
        path = template.format_map(names)
        request(method, path, json={})
        for bad in (f"Bearer {token}x", f"Bearer {token[:-1]}", f"Basic {token}", token):
            refused = request("GET", path, headers={"Authorization": bad})
            assert token[:-1] not in refused.text
    request("GET", f"/v1/runs?cursor={token}")
    for parts in (["runs"], ["agents"], ["verdict", run_id], ["audit"], ["doctor"]):
        done = site.run(*parts, "--api", url) if parts[0] != "doctor" else site.run(*parts)
        seen[f"{parts[0]} without"] = (done.stdout + done.stderr).encode()
    site.environment["BROADSIDE_TOKEN"] = token
    for parts in (["runs", "-o", "json"], ["agents"], ["verdict", run_id], ["raw", run_id, "1"]):
        done = site.run(*parts, "--api", url)
        seen[parts[0]] = (done.stdout + done.stderr).encode()
        assert done.returncode in (0, 2), done.stderr
    broken = {"BROADSIDE_TABLES_CONNECTION_STRING", "BROADSIDE_SERVICEBUS_CONNECTION_STRING"}
    for name in broken:
        before = site.environment[name]
        for command, value in (("doctor", before[:-3]), ("runs", before[::-1])):
            site.environment[name] = value
            done = site.run(command)
            seen[f"{command} with a bad {name}"] = (done.stdout + done.stderr).encode()
        site.environment[name] = before
