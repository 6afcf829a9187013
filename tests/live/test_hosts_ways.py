"""Test network paths between hosts and the life of agent credentials.

The paths use a proxy, IPv6 only, or the site's certificates.
"""

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from broadside.agent.clock import parse_tracking
from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.coordinator.agent_gateway.gateway_server import server_certificate
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.embedded.backup import back_up, restore
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.http.coordinator_client import RENEW_S, CoordinatorClient, open_client
from broadside.exchange.http.credential import AgentCredential, load_credential
from broadside.exchange.http.joining import join, new_code
from broadside.exchange.messages import ClockReading, Role
from broadside.exchange.ports import ExchangeError, ExchangeRefused, ExchangeUnavailable, Outgoing
from broadside.lab.namespaces import CHRONY_PATH, run, write_sysctls
from broadside.lab.serving import ServeProcess
from broadside.lab.site import built, staged
from broadside.lab.topology import Lab, LabSpec, management_name
from tests.live.certificates import Certificates, make_certificates
from tests.live.labs import new_prefix
from tests.live.live_agents import presences_in
from tests.live.live_site import GENTLE, ROOT, wait_for_summary
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# The namespaces, without the prefix of the test.
AGENT, PROXY, COORDINATOR = "a", "p", "c"
PROXY_AT = ("10.98.1.2", 3128)
# The address of the coordinator. The agent's host has no route to it.
BEHIND = "10.98.2.2"
# The prefix of the IPv6 networks.
SIX = "fd00:98"
ONE_PAIR = {**GENTLE, "pairs_count": 1, "burst_s": 10}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20, capture_output=True)


def inherited() -> dict[str, str]:
    """Return the environment of this process without Broadside settings."""
    stored = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
    return stored | {"PYTHONPATH": str(ROOT)}


def of_an_agent(coordinator: str, agent_id: str, role: str, spool: Path) -> dict[str, str]:
    """Return the settings for an agent on loopback, to use a coordinator on another host."""
    return {
        "BROADSIDE_FABRIC": "http",
        "BROADSIDE_COORDINATOR": coordinator,
        "BROADSIDE_AGENT_AGENT_ID": agent_id,
        "BROADSIDE_AGENT_ROLE": role,
        "BROADSIDE_AGENT_NIC": "lo",
        "BROADSIDE_AGENT_ADDRESS": "127.0.0.1",
        "BROADSIDE_AGENT_SPOOL_DIR": str(spool),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChain:
    """Three hosts in a row."""

    prefix: str
    folder: Path
    started: list["subprocess.Popen[bytes]"]

    def start(self, host: str, *argv: str, **environment: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{host}.log").open("ab") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.prefix + host, sys.executable, "-m", *argv],
                env=inherited() | {"PYTHONUNBUFFERED": "1"} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def serve(self) -> None:
        settings = {"BROADSIDE_HOSTS_LISTEN": "[::]:8443", "BROADSIDE_DATA_DIR": str(self.data)}
        self.start(COORDINATOR, "coordinator", "serve", **settings)
        wait_for("the coordinator", lambda: "listening on" in self.log(COORDINATOR))

    def join(self, code: str, coordinator: str, **environment: str) -> None:
        """Start a client agent on its host."""
        settings = of_an_agent(coordinator, "far", "client", self.folder / "spool")
        hasty = {"BROADSIDE_AGENT_JOIN": code, "BROADSIDE_AGENT_HEARTBEAT_S": "1"}
        self.start(AGENT, "agent", **settings, **hasty, **environment)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def log(self, host: str) -> str:
        return (self.folder / f"{host}.log").read_text()

    def beats_since(self, at: datetime) -> bool:
        return any(item.beat_at > at for item in presences_in(self.data).values())


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[HostChain]:
    made = HostChain(prefix=new_prefix(), folder=tmp_path, started=[])
    name = {end: made.prefix + end for end in (AGENT, PROXY, COORDINATOR)}
    try:
        for end in name.values():
            ip("netns", "add", end)
            ip("-n", end, "link", "set", "lo", "up")
        for one, device, other, there, addresses in (
            (AGENT, "p0", PROXY, "a0", ("10.98.1.1/24", "10.98.1.2/24")),
            (PROXY, "c0", COORDINATOR, "p0", ("10.98.2.1/24", f"{BEHIND}/24")),
        ):
            cable = ["netns", name[one], "type", "veth", "peer", "name", there]
            ip("link", "add", device, *cable, "netns", name[other])
            for end, port, address in ((one, device, addresses[0]), (other, there, addresses[1])):
                ip("-n", name[end], "addr", "add", address, "dev", port)
                ip("-n", name[end], "link", "set", port, "up")
        yield made
    finally:
        for process in reversed(made.started):
            process.terminate()
        for process in made.started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for end in name.values():
            subprocess.run(["ip", "netns", "del", end], check=False, timeout=20)


def new_join_code(data: Path, count: int = 1, shown: Certificates | None = None) -> str:
    """Create a join code for clients, to be valid for an hour."""

    async def made() -> str:
        now = datetime.now(UTC)
        given = CoordinatorSettings(
            hosts_certificate_file=shown and shown.chain, hosts_key_file=shown and shown.key
        )
        code, secret = new_code(server_certificate(given, data).authority)
        fabric = open_fabric(FabricSettings(data_dir=data))
        until = now + timedelta(hours=1)
        try:
            known = Enrolments(fabric.private)
            await known.add_code(secret, JoinTerms(Role.CLIENT, count, until), by="test", now=now)
        finally:
            await fabric.close()
        return code

    return asyncio.run(made())


async def wait_for_dead_letter(data: Path, name: str) -> None:
    """Send an invalid message to the client and wait for it to be dead-lettered."""
    queue = EmbeddedQueue(data)
    until_at = datetime.now(UTC) + timedelta(minutes=10)
    poison = Outgoing(body=b"no job", message_id=name, expires_at=until_at, enqueue_at=None)
    try:
        await queue.send([poison])
        for _ in range(600):
            if name in {letter.message_id for letter in await queue.dead_letters()}:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("no agent received the message")
    finally:
        await queue.close()


@pytest.mark.needs_root
def test_agent_reconnects_through_a_restarted_proxy(hosts: HostChain) -> None:
    hosts.serve()
    parts = ("tests.live.connect_proxy", PROXY_AT[0], str(PROXY_AT[1]))
    proxy = hosts.start(PROXY, *parts)
    began_at = datetime.now(UTC)
    through = f"http://{PROXY_AT[0]}:{PROXY_AT[1]}"
    hosts.join(new_join_code(hosts.data), f"https://{BEHIND}:8443", HTTPS_PROXY=through)
    wait_for("a heartbeat through the proxy", lambda: hosts.beats_since(began_at))
    asyncio.run(wait_for_dead_letter(hosts.data, "1"))
    assert f"CONNECT {BEHIND}:8443" in hosts.log(PROXY)
    proxy.kill()
    proxy.wait()
    # Wait for another heartbeat to be lost.
    time.sleep(1.5)
    again_at = datetime.now(UTC)
    hosts.start(PROXY, *parts)
    wait_for("a heartbeat through the new one", lambda: hosts.beats_since(again_at))
    asyncio.run(wait_for_dead_letter(hosts.data, "2"))


@pytest.mark.needs_root
def test_agent_can_use_coordinator_host_as_time_source(hosts: HostChain) -> None:
    """Test two hosts without other time sources and with the chrony lines of docs/hosts.md."""
    page = (ROOT / "docs" / "hosts.md").read_text().partition("source of last resort")[2]
    serves = page.split("```")[1].strip().splitlines()
    requests = page.partition("`server coordinator ")[2].partition("`")[0]
    # Distributions allow chronyd to write to this folder.
    CHRONY_PATH.mkdir(exist_ok=True)
    for place, lines in ((PROXY, serves), (AGENT, [f"server {PROXY_AT[0]} {requests}", "port 0"])):
        pid_file = CHRONY_PATH / f"{hosts.prefix}{place}.pid"
        local = ["bindcmdaddress /", f"pidfile {pid_file}"]
        within = ["ip", "netns", "exec", hosts.prefix + place]
        hosts.started.append(
            subprocess.Popen([*within, "chronyd", "-x", "-d", "-u", "root", *lines, *local])
        )

    def read() -> ClockReading:
        requested = ["chronyc", "-c", "-h", "127.0.0.1", "tracking"]
        within = ["ip", "netns", "exec", hosts.prefix + AGENT]
        completed = subprocess.run(
            [*within, *requested], check=False, timeout=20, capture_output=True, text=True
        )
        return parse_tracking(completed.stdout, datetime.now(UTC))

    wait_for("the time of the coordinator", lambda: read().synchronised)
    reading = read()
    assert reading.bound_s is not None
    assert (reading.stratum, reading.reference) == (11, PROXY_AT[0])


def with_ipv6_alone(lab: Lab) -> Lab:
    """Return the lab after a change of its hosts to use only IPv6."""
    firewall, uplink = lab.firewall_namespace, management_name(lab.spec.prefix)
    assert firewall is not None
    subnets = {Role.CLIENT: (f"{SIX}:1:", "c0"), Role.SERVER: (f"{SIX}:2:", "s0")}
    write_sysctls(firewall, {"ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/all/forwarding": "1"})
    for subnet, port in subnets.values():
        ip("-n", firewall, "addr", "add", f"{subnet}:1/64", "dev", port, "nodad")
    ip("addr", "add", f"{SIX}::1/64", "dev", uplink, "nodad")
    moved = []
    for number, host in enumerate(lab.hosts, 2):
        assert host.namespace is not None
        write_sysctls(host.namespace, {"ipv6/conf/all/disable_ipv6": "0"})
        on, (subnet, _) = ("-n", host.namespace), subnets[host.role]
        ip(*on, "addr", "flush", "dev", host.nic)
        ip(*on, "addr", "add", f"{subnet}:{number}/64", "dev", host.nic, "nodad")
        ip(*on, "route", "add", "default", "via", f"{subnet}:1", "dev", host.nic)
        ip(*on, "addr", "add", f"{SIX}::{number}/64", "dev", "mg0", "nodad")
        moved.append(replace(host, address=f"{subnet}:{number}"))
    clients, servers = tuple(moved[: len(lab.clients)]), tuple(moved[len(lab.clients) :])
    return replace(lab, clients=clients, servers=servers, management_address=f"{SIX}::1")


@pytest.mark.needs_root
def test_burst_over_ipv6_only(tmp_path: Path) -> None:
    """Test data and control over IPv6. Only the lab's time service should use IPv4."""
    spec = LabSpec(pairs_count=1, prefix=new_prefix(), firewall_bits_per_second=200_000_000)
    with (
        built(spec, tmp_path / "lab") as four,
        staged(lab := with_ipv6_alone(four), tmp_path, device_counter={}, other_hosts=True) as site,
    ):
        body = {"scenario": "smoke", "overrides": ONE_PAIR}
        run_id = site.coordinator.launch(body)["run_id"]
        summary = wait_for_summary(site.coordinator.url, run_id, 120)
        assert summary["pairs_measured"] == 1, summary["findings"]
        assert summary["completeness_ratio"] == 1.0, summary["findings"]
        firewall = lab.firewall_namespace
        (out,) = json.loads(run(["ip", "-j", "-s", "link", "show", "s0"], namespace=firewall))
        offered_bytes = 2 * 4e6 / 8 * 10
        assert out["stats64"]["tx"]["bytes"] > 0.9 * offered_bytes, (
            "the traffic must cross the firewall"
        )


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return monkeypatch


@contextlib.contextmanager
def serving(folder: Path, **settings: str) -> Iterator[tuple[ServeProcess, str]]:
    """Run a coordinator with a listener on loopback, and yield it with its address."""
    environment = {
        "BROADSIDE_DATA_DIR": str(folder / "data"),
        "BROADSIDE_HOSTS_LISTEN": "127.0.0.1:0",
        **settings,
    }
    with ServeProcess(environment, folder) as served:
        text = served.log_path.read_text()
        yield served, text.split("agents on other hosts enroll at ")[1].split()[0]


async def ping(credential: AgentCredential) -> None:
    link = CoordinatorClient(credential)
    try:
        await link.call("ping")
    finally:
        await link.close()


def test_verifies_site_certificate_with_system_authorities(
    tmp_path: Path, trusted: pytest.MonkeyPatch
) -> None:
    site = make_certificates(tmp_path)
    settings = {
        "BROADSIDE_HOSTS_CERTIFICATE_FILE": str(site.chain),
        "BROADSIDE_HOSTS_KEY_FILE": str(site.key),
    }
    with serving(tmp_path, **settings) as (_, at):
        code = new_join_code(tmp_path / "data", shown=site)
        assert code.split(".")[1] == "site"
        path = tmp_path / "c1.json"
        with pytest.raises(ExchangeUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(join(code, (at,), "c1", "client", path))
        trusted.setenv("SSL_CERT_FILE", str(site.authority))
        asyncio.run(ping(asyncio.run(join(code, (at,), "c1", "client", path))))
        other = at.replace("127.0.0.1", "localhost")
        with pytest.raises(ExchangeUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(join(code, (other,), "c2", "client", tmp_path / "c2.json"))


async def renewed(path: Path) -> AgentCredential:
    """Simulate a credential of yesterday and use it, to return the renewed one."""
    old = load_credential(path)
    assert old is not None
    link = CoordinatorClient(replace(old, issued_s=time.time() - RENEW_S - 60).save(path))
    try:
        async with asyncio.timeout(60):
            while (now := load_credential(path)) is None or now.secret == old.secret:
                await link.call("ping")
                await asyncio.sleep(0.1)
            await link.call("ping")
    finally:
        await link.close()
    return now


def test_renews_old_credential_and_revokes_all_agents_of_a_code(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (_, at):
        code = new_join_code(tmp_path / "data", 2)
        paths = {name: tmp_path / f"{name}.json" for name in ("c1", "c2")}
        for name, path in paths.items():
            asyncio.run(join(code, (at,), name, "client", path))
        # The response to the join was lost.
        paths["c2"].rename(paths["c2"].with_suffix(".joining"))
        asyncio.run(join(code, (at,), "c2", "client", paths["c2"]))
        old = load_credential(paths["c1"])
        assert old is not None
        new = asyncio.run(renewed(paths["c1"]))
        assert paths["c1"].stat().st_mode & 0o777 == 0o600
        asyncio.run(ping(new))
        wait_for("the old secret is refused", lambda: refused(old))

        name = revoke_first_code(tmp_path / "data")
        second = load_credential(paths["c2"])
        assert second is not None
        for credential in (new, second):
            wait_for(
                f"{credential.agent_id} is rejected after the revocation of {name}",
                partial(refused, credential),
            )


@pytest.mark.parametrize("is_off_by", [timedelta(days=-1500), timedelta(days=1500)])
def test_host_with_wrong_clock_trusts_only_its_coordinator(
    tmp_path: Path, is_off_by: timedelta
) -> None:
    """Test with a clock that is years off.

    For this clock the certificate will not be valid yet or will be expired.
    """
    at = datetime.now(UTC) + is_off_by
    shown, other = load_authority(tmp_path / "one", at), load_authority(tmp_path / "other", at)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown.certificate_file, shown.key_file)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask() -> int:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            url = "https://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
            async with open_client(other.authority) as client:
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.get(url)
            async with open_client(shown.authority) as client:
                return (await client.get(url)).status_code

    assert asyncio.run(ask()) == 204


def test_revoked_host_needs_a_new_code_to_join(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (_, at):
        data, path = tmp_path / "data", tmp_path / "c1.json"
        first = asyncio.run(join(new_join_code(data), (at,), "c1", "client", path))
        code = new_join_code(data)
        assert asyncio.run(join(code, (at,), "c1", "client", path)) == first
        away = ("https://127.0.0.1:1",)
        assert asyncio.run(join(code, away, "c1", "client", path)) == first, (
            "a credential that was not rejected must be kept"
        )
        asyncio.run(a_stream_ends_when(first, lambda: revoke_first_code(data)))
        wait_for("the old credential is refused", lambda: refused(first))
        # The join code is older than the revocation.
        with pytest.raises(ExchangeError, match="was revoked"):
            asyncio.run(join(code, (at,), "c1", "client", path))
        second = asyncio.run(join(new_join_code(data), (at,), "c1", "client", path))
        assert second.secret != first.secret
        asyncio.run(ping(replace(second, path=None)))


async def a_stream_ends_when(credential: AgentCredential, happens: Callable[[], object]) -> None:
    """Verify that an open stream ends after a call to ``happens``."""
    url = f"{credential.coordinators[0]}/v1/exchange/stream?session=s"
    headers = {"Authorization": f"Bearer {credential.secret}"}
    async with (
        asyncio.timeout(60),
        open_client(credential.authority) as client,
        client.stream("GET", url, headers=headers) as stream,
    ):
        pieces = stream.aiter_raw()
        await anext(pieces)
        await asyncio.to_thread(happens)
        async for _ in pieces:
            pass


def test_coordinator_of_an_old_backup_accepts_its_agents(tmp_path: Path) -> None:
    """Test agents with new secrets, and a backup that contains an earlier secret."""
    data, path, file = tmp_path / "data", tmp_path / "c1.json", tmp_path / "backup"
    with serving(tmp_path) as (_, at):
        code = new_join_code(data)
        asyncio.run(join(code, (at,), "c1", "client", path))
        back_up(data, file)
        for _ in range(2):
            asyncio.run(renewed(path))
    shutil.rmtree(data)
    restore(file, data)
    newest = load_credential(path)
    assert newest is not None and len(newest.earlier) == 2
    with serving(tmp_path) as (_, at):
        credential = replace(newest, coordinators=(at,))

        async def let_in(credential: AgentCredential) -> None:
            link = CoordinatorClient(credential)
            try:
                async with asyncio.timeout(60):
                    while True:
                        with contextlib.suppress(ExchangeRefused):
                            await link.call("ping")
                            return
                        await asyncio.sleep(0.1)
            finally:
                await link.close()

        assert refused(credential)
        asyncio.run(let_in(credential))
        asyncio.run(ping(replace(credential, path=None)))
    shutil.rmtree(data)
    restore(file, data)
    # A host should be able to start with the join code, even if it has already been used.
    with serving(tmp_path) as (_, at):
        asyncio.run(join(code, (at,), "c1", "client", path))
        asyncio.run(ping(replace(newest, coordinators=(at,), path=None)))


def agent_on_loopback(folder: Path, at: str, agent_id: str, role: str) -> "subprocess.Popen[bytes]":
    """Start an agent that already has a credential, and write its output to ``agent.log``."""
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "broadside.agent"],
            env=inherited() | of_an_agent(at, agent_id, role, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def test_agent_reports_wrong_credential(tmp_path: Path) -> None:
    """Test a renamed agent, another role, and a coordinator with a new authority."""
    spool = tmp_path / "spool"
    spool.mkdir()
    with serving(tmp_path) as (_, at):
        stored = spool / "credential.json"
        asyncio.run(join(new_join_code(tmp_path / "data"), (at,), "c1", "client", stored))
        for agent_id, role in (("renamed", "client"), ("c1", "server")):
            assert agent_on_loopback(spool, at, agent_id, role).wait(60) == 3
            text = (spool / "agent.log").read_text()
            assert "the credential of client.c1, and this is " + f"{role}.{agent_id}: set" in text
    shutil.rmtree(tmp_path / "data" / "tls")
    enroll(tmp_path / "data", "new-authority")
    with serving(tmp_path) as (_, at):
        agent = agent_on_loopback(spool, at, "c1", "client")
        try:
            wait_for(
                "the log contains the reason",
                lambda: "it lost its tls folder" in (spool / "agent.log").read_text(),
            )
        finally:
            agent.terminate()
            agent.wait(60)


def refused(credential: AgentCredential) -> bool:
    try:
        asyncio.run(ping(replace(credential, path=None)))
    except ExchangeRefused:
        return True
    except ExchangeError:
        return False
    return False


def revoke_first_code(data: Path) -> str:
    async def first() -> str:
        fabric = open_fabric(FabricSettings(data_dir=data))
        try:
            (name,) = {agent.join for agent in await Enrolments(fabric.private).agents()}
        finally:
            await fabric.close()
        return name

    name = asyncio.run(first())
    enroll(data, "revoke", name)
    return name


def enroll(data: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "broadside.coordinator", "enroll", *arguments],
        env=os.environ | {"BROADSIDE_DATA_DIR": str(data), "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
        capture_output=True,
    )
