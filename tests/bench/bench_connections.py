"""Measure connections per second of our generator and of other tools on one host.

To run it, use ``python -m tests.bench.bench_connections [--seconds 5]``. It needs root, because it
makes network namespaces. Each tool opens a connection for each HTTP request of 1 kB, and ours also
its other modes: without bytes, with a short exchange, held, and with TLS. ``CORE_RATES`` of the
engine are from here. The server of our generator is its own, and that of the others is nginx. Tools
that are not installed are skipped.

The first table is on loopback, with the client on one core and the server on another. ``per core``
is the number of connections per second of CPU time, which includes the soft interrupts that a
process causes. On loopback the kernel does both ends of a handshake on the client's core.
The second table has the rate behind a device that drops each SYN above 400 per second. The exit
code is 1 if our generator (connect) makes fewer than 30,000 connections per second, or fewer than
another tool.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from broadside.exchange.programs import module_command
from tests.namespace_path import SERVER, add_nft_rule, path_between
from tests.self_signed import make_certificate

LOOPBACK = "127.0.0.1"
OURS_PORT, NGINX_PORT = 9000, 8080
LIMIT_PER_SECOND = 400
# Connections per second.
FLOOR = 30_000
# Offered rates of tools with an open loop. Ours is more than it reaches. Above this rate, vegeta
# completes fewer.
OURS_RATE, OTHER_RATE = 100_000, 6_000
# Connections to hold, which use one local port each.
HELD_COUNT = 15_000
# A tool that has not ended after this time is stopped.
WAIT_S = 30
ARM_S = 2.0
TOKEN = "r1.00000.00000.60"  # noqa: S105 - an id, not a password
GENERATOR = module_command("broadside.agent.connection_generator")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES_COUNT = os.cpu_count() or 1
CLIENT_CORE, SERVER_CORE = 0, CORES_COUNT - 1
NGINX = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_timeout 0; client_body_temp_path {folder}/a;
  proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
  scgi_temp_path {folder}/e;
  server {{ listen {port} backlog=65535; root {folder}; }} }}
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a tool should do.

    Attributes:
        address: Address of the server.
        rate: Connections per second, for tools with an open loop.
        seconds: Duration.
    """

    address: str
    rate: int
    seconds: int

    @property
    def url(self) -> str:
        return f"http://{self.address}:{NGINX_PORT}/"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A client program.

    Attributes:
        name: Name in the table.
        command: Function that returns the command line for a load.
        complete: Function that returns the complete transactions from the output.
        rate: Connections per second to offer on loopback.
        is_timed: True if it runs for the chosen time, and not until all requests are complete.
    """

    name: str
    command: Callable[[Load], Sequence[str]]
    complete: Callable[[str], int]
    rate: int = OTHER_RATE
    is_timed: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a tool.

    Attributes:
        complete: Complete transactions.
        lasted_s: Time of the tool.
        cpu_s: CPU time of the client's and of the server's processes.
    """

    complete: int
    lasted_s: float
    cpu_s: tuple[float, float]


def ours(mode: str, *words: str) -> Callable[[Load], Sequence[str]]:
    """Return the command line of our generator in a mode."""

    def command(load: Load) -> Sequence[str]:
        fields = {"address": load.address, "port": OURS_PORT, "token": TOKEN, "mode": mode}
        times = {"at": f"{time.time() + ARM_S:.3f}", "duration": load.seconds, "limit": 0.9}
        options = {**fields, **times, "rate": load.rate}
        own = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return [*GENERATOR, "client", *own, *words]

    return command


def closed(output: str) -> int:
    """Return the complete connections of our generator."""
    return sum(json.loads(line).get("closed", 0) for line in output.splitlines())


def number_in(pattern: str) -> Callable[[str], int]:
    """Return a function that reads a number from the output."""

    def read(output: str) -> int:
        match = re.search(pattern, output)
        return int(match[1]) if match else 0

    return read


def vegeta(load: Load) -> Sequence[str]:
    attack = f"-duration={load.seconds}s -rate={load.rate} -keepalive=false -timeout=0.9s"
    command = f"vegeta attack {attack} -max-workers=9000 | vegeta report -type=json"
    return ["sh", "-c", f"echo GET {load.url} | {command}"]


TOOLS = (
    Tool(name="ours, connect", command=ours("connect"), complete=closed, rate=OURS_RATE),
    Tool(
        name="ours, http",
        command=ours("http", "--bodies", "1000"),
        complete=closed,
        rate=OURS_RATE,
    ),
    Tool(
        name="ours, exchange",
        command=ours("exchange", "--bytes", "100"),
        complete=closed,
        rate=OURS_RATE,
    ),
    Tool(
        name="ours, hold",
        command=ours("hold", "--bytes", "16", "--count", str(HELD_COUNT), "--heartbeat", "60"),
        complete=closed,
        rate=HELD_COUNT,
    ),
    Tool(name="ours, TLS", command=ours("connect", "--tls", "1.3"), complete=closed, rate=1000),
    Tool(
        name="ours, TLS resumed",
        command=ours("connect", "--tls", "1.3", "--resume", "1"),
        complete=closed,
        rate=2000,
    ),
    Tool(
        name="vegeta",
        command=vegeta,
        complete=lambda output: json.loads(output)["status_codes"].get("200", 0),
    ),
    Tool(
        name="wrk (closed loop)",
        command=lambda load: [
            *("wrk", "-t1", "-c32", f"-d{load.seconds}s", "--timeout", "1s"),
            *("-H", "Connection: close", load.url),
        ],
        complete=number_in(r"(\d+) requests in"),
    ),
    Tool(
        name="h2load (closed loop)",
        command=lambda load: [
            *("h2load", "--h1", "-t1", "-c32", f"-n{load.rate * load.seconds}", "-T", "1"),
            *("-H", "Connection: close", load.url),
        ],
        complete=number_in(r"(\d+) succeeded"),
        is_timed=False,
    ),
    Tool(
        name="oha",
        command=lambda load: [
            *("oha", "--no-tui", "--disable-keepalive", "-c", "32", "-q", str(load.rate)),
            *("-z", f"{load.seconds}s", "-t", "900ms", "--output-format", "json", load.url),
        ],
        complete=lambda output: json.loads(output)["statusCodeDistribution"].get("200", 0),
    ),
)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_connections")
    parser.add_argument("--seconds", type=int, default=5)
    seconds = parser.parse_args().seconds
    os.environ["PATH"] += f":{Path.cwd() / '.tools' / 'vegeta' / 'bin'}"
    with path_between() as (client, server):
        # The tools close with FIN.
        for prefix in (client, server):
            for setting in ("ip_local_port_range=1024 65000", "tcp_tw_reuse=1"):
                subprocess.run([*prefix, "sysctl", "-qw", f"net.ipv4.{setting}"], check=True)
        with serving(server) as servers:
            rates = print_rates(server, servers, seconds)
            flags = f"tcp flags & (syn | ack) == syn limit rate over {LIMIT_PER_SECOND}/second"
            add_nft_rule(server, f"{flags} burst 5 packets drop")
            print_limited(client, servers, seconds)
    rate_of_ours = rates.pop("ours, connect")
    others = [rate for name, rate in rates.items() if not name.startswith("ours")]
    sys.exit(rate_of_ours < max(FLOOR, *others, 0))


def print_rates(prefix: Sequence[str], servers: Sequence[int], seconds: int) -> dict[str, float]:
    """Print rates and CPU times on loopback. Return the rates by tool."""
    print(f"{'':26}{'':12}{'CPU-s per 10,000':>20}{'per core':>20}")
    print(
        f"{'loopback':<26}{'complete/s':>12}{'client':>10}{'server':>10}{'client':>10}{'server':>10}"
    )
    rates = {}
    for tool in installed():
        load = Load(address=LOOPBACK, rate=tool.rate, seconds=seconds)
        result = measured([*prefix, *tool.command(load)], tool, servers)
        rates[tool.name] = result.complete / (seconds if tool.is_timed else result.lasted_s)
        costs = "".join(f"{cpu_s / max(result.complete, 1) * 1e4:>10.2f}" for cpu_s in result.cpu_s)
        cores = "".join(f"{result.complete / max(cpu_s, 0.01):>10.0f}" for cpu_s in result.cpu_s)
        print(f"  {tool.name:<24}{rates[tool.name]:>12.0f}{costs}{cores}")
    return rates


def print_limited(prefix: Sequence[str], servers: Sequence[int], seconds: int) -> None:
    """Print the rates behind the limit."""
    print(f"\nbehind {LIMIT_PER_SECOND}/s (SYNs are dropped), 1,000/s offered, complete per s")
    for tool in installed():
        load = Load(address=SERVER, rate=1000, seconds=seconds)
        result = measured([*prefix, *tool.command(load)], tool, servers)
        state = "never ended" if result.lasted_s >= WAIT_S else f"{result.complete / seconds:.0f}"
        print(f"  {tool.name:<24}{state:>12}")


def installed() -> Iterator[Tool]:
    for tool in TOOLS:
        command = tool.command(Load(address=LOOPBACK, rate=1, seconds=1))
        program = "vegeta" if command[0] == "sh" else command[0]
        if shutil.which(program):
            yield tool
        else:
            print(f"  {tool.name:<24}not installed")


def measured(argv: Sequence[str], tool: Tool, servers: Sequence[int]) -> Outcome:
    """Run a tool on its core.

    Args:
        argv: Command line.
        tool: The tool.
        servers: Process ids of the servers.
    """
    began_s, before, served_s = time.monotonic(), os.times(), process_cpu_s(servers)
    argv = ["taskset", "-c", str(CLIENT_CORE), "timeout", "-s", "KILL", str(WAIT_S), *argv]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    lasted_s, after = time.monotonic() - began_s, os.times()
    spent_s = after.children_user + after.children_system
    cpu_s = (
        spent_s - before.children_user - before.children_system,
        process_cpu_s(servers) - served_s,
    )
    return Outcome(
        complete=tool.complete(output) if output.strip() else 0,
        lasted_s=lasted_s,
        cpu_s=cpu_s,
    )


def process_cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU time of processes and their children."""
    total_s = 0.0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total_s += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        total_s += process_cpu_s([int(child) for child in children])
    return total_s


@contextmanager
def serving(prefix: Sequence[str]) -> Iterator[list[int]]:
    """Run both servers and yield their process ids."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        Path(folder).chmod(0o755)
        (Path(folder) / "index.html").write_bytes(os.urandom(1000))
        text = NGINX.format(folder=folder, port=NGINX_PORT)
        (Path(folder) / "nginx.conf").write_text(text)
        server = [*GENERATOR, "server", "--address", "::", "--port", str(OURS_PORT)]
        server += make_certificate(Path(folder))
        other = ["nginx", "-p", folder, "-c", f"{folder}/nginx.conf"]
        processes = []
        for argv in (server, other):
            argv = ["taskset", "-c", str(SERVER_CORE), *prefix, *argv]
            process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
            processes.append(process.pid)
            ends.callback(process.wait)
            ends.callback(process.terminate)
        time.sleep(1)
        yield processes


if __name__ == "__main__":
    main()
