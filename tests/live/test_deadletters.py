"""Test that agents dead-letter invalid messages and that the commands can explain them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Endpoint, Job, Role, Traffic
from broadside.exchange.ports import Outgoing
from tests.live.live_site import Site, call
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

T = TypeVar("T")


def on_fabric(site: Site, work: Callable[[Fabric], Awaitable[T]]) -> T:
    async def opened() -> T:
        fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
        try:
            return await work(fabric)
        finally:
            await fabric.close()

    return asyncio.run(opened())


def send(site: Site, message_id: str, body: bytes) -> None:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    message = Outgoing(body=body, message_id=message_id, expires_at=expires_at)
    on_fabric(site, lambda fabric: fabric.queue.send([message]))


def job(address: str, **changes: Any) -> Job:
    return Job(
        run_id="planted",
        burst_index=0,
        pair_index=1,
        endpoint=Endpoint(agent_id="s1", address=address, port=5201),
        traffic=Traffic(),
        planned_start_at=changes.pop("planned_start_at", datetime.now(UTC) + timedelta(minutes=3)),
        duration_s=5,
        **changes,
    )


def listed(site: Site) -> list[dict[str, Any]]:
    done = site.run("deadletters", "list", "-o", "json")
    assert done.returncode == 0, done.stderr
    letters: list[dict[str, Any]] = json.loads(done.stdout)
    return letters


def test_lists_and_explains_dead_letters_of_an_agent(site: Site) -> None:
    _, url = site.start_coordinator()
    send(site, "poison-1", b"fire!")
    outside = job("203.0.113.9")
    on_fabric(site, lambda fabric: fabric.records.runs.save_jobs("planted", 0, [outside]))
    send(site, "refused-1", outside.body)
    site.start_agent(Role.CLIENT, "c1")
    wait_for("two dead letters", lambda: len(call(url, "GET", "/v1/deadletters")) == 2)
    poison, refused = sorted(listed(site), key=lambda letter: str(letter["message_id"]))
    assert (poison["reason"], poison["body"], poison["run_id"]) == ("NotJson", "fire!", None)
    assert (refused["reason"], refused["claimed_by"]) == ("Refused", "c1")

    text = site.run("deadletters", "explain", str(refused["sequence_number"]), "--api", url)
    assert text.returncode == 0, text.stderr
    for parts in (
        "run planted, burst 1, pair-002 to 203.0.113.9:5201",
        "outside this agent's allowed networks",
        "next: if the target is a server",
        "BROADSIDE_AGENT_ALLOWED_NETWORKS on every client agent",
        "it cannot be resent: agent c1 already claimed it",
    ):
        assert parts in text.stdout
    table = site.run("deadletters", "list")
    assert "poison-1" not in table.stdout
    assert "NotJson" in table.stdout
    for letter, parts in ((poison, "is not a job"), (refused, "agent c1 already claimed it")):
        again = site.run("deadletters", "resend", str(letter["sequence_number"]), "--api", url)
        assert again.returncode == 4
        assert parts in again.stderr
        assert len(again.stderr.strip().splitlines()) == 1
    assert len(listed(site)) == 2

    misuses: list[tuple[str, ...]] = [(), ("7", "--all")]
    for misuse in misuses:
        assert site.run("deadletters", "purge", *misuse).returncode == 3
    number = str(poison["sequence_number"])
    purged = site.run("deadletters", "purge", number, "--api", url)
    assert purged.stdout == "deleted: poison-1 (NotJson)\n", purged.stderr
    assert site.run("deadletters", "purge", number).returncode == 3, "it was already deleted"
    assert site.run("deadletters", "purge", "--all").stdout == "deleted 1 dead letter\n"
    assert listed(site) == []
    audited = [row["path"] for row in call(url, "GET", "/v1/audit") if row["method"] == "DELETE"]
    assert f"/v1/deadletters/{number}" in audited


def test_resends_job_only_before_its_start(site: Site) -> None:
    now = datetime.now(UTC)
    due = job("127.0.0.1")
    late = job("127.0.0.1", planned_start_at=now - timedelta(seconds=1))
    for name, planted in (("due", due), ("late", late)):
        send(site, name, planted.model_dump_json().encode())

    async def bury(fabric: Fabric) -> None:
        for _ in range(2):
            delivery = await fabric.queue.receive(2)
            assert delivery is not None
            await fabric.queue.dead_letter(delivery, "MaxDeliveryCountExceeded", "planted")

    on_fabric(site, bury)
    numbers = {str(letter["message_id"]): str(letter["sequence_number"]) for letter in listed(site)}
    refused = site.run("deadletters", "resend", numbers["late"])
    assert refused.returncode == 4
    assert "passed" in refused.stderr
    assert "missed measurement" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    sent = site.run("deadletters", "resend", numbers["due"])
    assert sent.returncode == 0, sent.stderr
    assert [letter["message_id"] for letter in listed(site)] == ["late"]
    delivery = on_fabric(site, lambda fabric: fabric.queue.receive(2))
    assert delivery is not None
    assert Job.model_validate_json(delivery.body) == due
    gone = site.run("deadletters", "resend", numbers["due"])
    assert gone.returncode == 3
    assert f"dead letter {numbers['due']}: no such dead letter" in gone.stderr
