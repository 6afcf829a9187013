"""Measure connections per second of our generator and of other tools on one path.

To run it, use ``python -m tests.bench.bench_connections [--seconds 5]``. It needs root, because the
path is a pair of network namespaces. Each tool opens a connection for each HTTP request of 1 kB.
The server of our generator is its own, and that of the others is nginx. Tools that are not
installed are skipped.

The first table has the CPU time of the client, so other work on the machine does not change it
much. The second has the rate behind a device that drops each SYN above 400 per second. The exit
code is 1 if our generator makes fewer than 30,000 connections per CPU-second (connect and close).
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

CLIENT, SERVER = "10.124.0.1", "10.124.0.2"
OURS_PORT, NGINX_PORT = 9000, 8080
LIMIT_PER_SECOND = 400
# Connections per CPU-second of the client.
FLOOR = 30_000
# A tool that has not ended after this time is stopped.
WAIT_S = 30
ARM_S = 2.0
TOKEN = "r1.00000.00000.60"  # noqa: S105 - an id, not a password
GENERATOR = module_command("broadside.agent.connection_generator")
URL = f"http://{SERVER}:{NGINX_PORT}/"
NGINX = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_timeout 0; client_body_temp_path {folder}/a;
  proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
  scgi_temp_path {folder}/e;
  server {{ listen {port} backlog=65535; root {folder}; }} }}
"""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A client program.

    Attributes:
        name: Name in the table.
        command: Function that returns the command line for a rate and a duration in seconds.
        complete: Function that returns the complete transactions from the output.
    """

    name: str
    command: Callable[[int, int], Sequence[str]]
    complete: Callable[[str], int]


def ours(mode: str, *words: str) -> Callable[[int, int], Sequence[str]]:
    """Return the command line of our generator in a mode."""

    def command(rate: int, seconds: int) -> Sequence[str]:
        fields = {"address": SERVER, "port": OURS_PORT, "token": TOKEN, "mode": mode}
        times = {"at": f"{time.time() + ARM_S:.3f}", "duration": seconds, "limit": 0.9}
        options = {**fields, **times, "rate": rate}
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


def vegeta(rate: int, seconds: int) -> Sequence[str]:
    attack = f"-duration={seconds}s -rate={rate} -keepalive=false -timeout=0.9s -max-workers=9000"
    return ["sh", "-c", f"echo GET {URL} | vegeta attack {attack} | vegeta report -type=json"]


TOOLS = (
    Tool(name="ours, connect", command=ours("connect"), complete=closed),
    Tool(name="ours, http", command=ours("http", "--bodies", "1000"), complete=closed),
    Tool(
        name="vegeta",
        command=vegeta,
        complete=lambda output: json.loads(output)["status_codes"].get("200", 0),
    ),
    Tool(
        name="wrk (closed loop)",
        command=lambda _, seconds: [
            *("wrk", "-t1", "-c32", f"-d{seconds}s", "--timeout", "1s"),
            *("-H", "Connection: close", URL),
        ],
        complete=number_in(r"(\d+) requests in"),
    ),
    Tool(
        name="h2load (closed loop)",
        command=lambda rate, seconds: [
            *("h2load", "--h1", "-t1", "-c32", f"-n{rate * seconds}", "-T", "1"),
            *("-H", "Connection: close", URL),
        ],
        complete=number_in(r"(\d+) succeeded"),
    ),
    Tool(
        name="oha",
        command=lambda rate, seconds: [
            *("oha", "--no-tui", "--disable-keepalive", "-c", "32", "-q", str(rate)),
            *("-z", f"{seconds}s", "-t", "900ms", "--output-format", "json", URL),
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
    with path_between() as (client, server), serving(server):
        connect_cpu_s = print_costs(client, seconds)
        subprocess.run(
            [*server, "nft", "-f", "-"],
            input="table ip t {\nchain c {\ntype filter hook input priority 0;\n"
            f"tcp flags & (syn | ack) == syn limit rate over {LIMIT_PER_SECOND}/second "
            "burst 5 packets drop\n}\n}\n",
            text=True,
            check=True,
        )
        print(f"\nbehind {LIMIT_PER_SECOND}/s (SYNs are dropped), 1,000/s offered, complete per s")
        for tool in installed():
            complete, lasted_s, _ = measured([*client, *tool.command(1000, seconds)], tool)
            state = "never ended" if lasted_s >= WAIT_S else f"{complete / seconds:.0f}"
            print(f"  {tool.name:<24}{state:>12}")
    sys.exit(connect_cpu_s * FLOOR > 10_000)


def print_costs(client: Sequence[str], seconds: int) -> float:
    """Print rates and CPU times. Return the CPU-seconds of 10,000 of our connections."""
    print(f"{'':26}{'complete/s':>12}{'CPU-s of the client per 10,000':>32}")
    costs = {}
    for tool in installed():
        rate = FLOOR if tool.name.startswith("ours") else 4000
        complete, _, cpu_s = measured([*client, *tool.command(rate, seconds)], tool)
        costs[tool.name] = cpu_s / max(complete, 1) * 10_000
        print(f"  {tool.name:<24}{complete / seconds:>12.0f}{costs[tool.name]:>32.2f}")
    return costs["ours, connect"]


def installed() -> Iterator[Tool]:
    for tool in TOOLS:
        command = tool.command(1, 1)
        program = "vegeta" if command[0] == "sh" else command[0]
        if shutil.which(program):
            yield tool
        else:
            print(f"  {tool.name:<24}not installed")


def measured(argv: Sequence[str], tool: Tool) -> tuple[int, float, float]:
    """Run a tool and return complete transactions, its time and its CPU time in seconds."""
    began_s, before = time.monotonic(), os.times()
    argv = ["timeout", "-s", "KILL", str(WAIT_S), *argv]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    lasted_s, after = time.monotonic() - began_s, os.times()
    spent = after.children_user + after.children_system
    cpu_s = spent - before.children_user - before.children_system
    complete = tool.complete(output) if output.strip() else 0
    return complete, lasted_s, cpu_s


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def path_between() -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the command prefixes of two namespaces with a wire between them."""
    names = [f"bench{os.getpid()}{end}" for end in "cs"]
    with ExitStack() as made:
        for name in names:
            _ip("netns", "add", name)
            made.callback(_ip, "netns", "del", name)
        _ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "v0", "netns", names[1])
        for name, address in zip(names, (CLIENT, SERVER), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            _ip("-n", name, "link", "set", "v0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            # The tools close with FIN.
            for setting in ("ip_local_port_range=1024 65000", "tcp_tw_reuse=1"):
                argv = ["ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{setting}"]
                subprocess.run(argv, check=True)
        client, server = (["ip", "netns", "exec", name] for name in names)
        yield client, server


@contextmanager
def serving(prefix: Sequence[str]) -> Iterator[None]:
    """Run both servers."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        Path(folder).chmod(0o755)
        (Path(folder) / "index.html").write_bytes(os.urandom(1000))
        text = NGINX.format(folder=folder, port=NGINX_PORT)
        (Path(folder) / "nginx.conf").write_text(text)
        own = [*GENERATOR, "server", "--address", SERVER, "--port", str(OURS_PORT)]
        other = ["nginx", "-p", folder, "-c", f"{folder}/nginx.conf"]
        for argv in (own, other):
            process = subprocess.Popen([*prefix, *argv], stdout=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.terminate)
        time.sleep(1)
        yield


if __name__ == "__main__":
    main()
