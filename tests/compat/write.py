"""Write the compatibility fixtures of one version with the programs of that version.

``make compat-fixtures VERSION=0.9.0`` uses this checkout. The option ``--checkout`` selects another
one, after its own ``make setup``. Only commands of that checkout are used, so the names of its
packages do not matter. The program needs root, because two runs use the lab.
"""

import argparse
import contextlib
import io
import json
import lzma
import os
import pwd
import re
import shutil
import socket
import sqlite3
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FIXTURES: Final = ROOT / "tests" / "data" / "compat"
IPERF3_FILES: Final = ROOT / "tests" / "data" / "iperf3" / "3.22"
ORIGINAL: Final = ROOT / "tests" / "data" / "original"
# Packages of commit 6cca7b45.
FOLDERS: Final = ("agent", "coordinator", "exchange")
# Exit codes of pass, fail and inconclusive.
DONE: Final = (0, 1, 2)

# All options of iperf3 over TCP without a tunnel.
TRAFFIC: Final = {
    "protocol": "tcp",
    "direction": "bidirectional",
    "streams_count": 4,
    "stream_bits_per_second": 4_000_000,
    "block_bytes": 65_536,
    "window_bytes": 1_048_576,
    "mss_bytes": 1_200,
    "congestion": "cubic",
    "pacing": "kernel",
    "dscp": 10,
    "processes_count": 2,
    "omit_s": 1,
    "interval_s": 0.5,
    "probe": "udp",
}
# All thresholds that TCP, probes and device telemetry can measure.
OBJECTIVE: Final = {
    "target_bits_per_second": 1_000_000,
    "layer": "ip",
    "tolerance_ratio": 0.1,
    "coverage_floor_ratio": 0.9,
    "rtt_mean_max_s": 5,
    "retransmit_max_ratio": 0.9,
    "probe_p99_max_s": 5,
    "probe_loss_max_ratio": 0.9,
    "device_cpu_p95_max_ratio": 0.9,
    "residual_max_ratio": 0.1,
    "start_spread_max_s": 30,
}
SHORT: Final = {
    "pairs_count": 1,
    "bursts_count": 1,
    "burst_s": 4,
    "period_s": 16,
    "lead_s": 6,
    "late_after_s": 5,
    "align_to_period": False,
}


@dataclass
class Writer:
    """Programs of one version and their working folder.

    Attributes:
        facts: Results of the runs by that version.
    """

    checkout: Path
    folder: Path
    stack: contextlib.ExitStack
    url: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    agents: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def command(self) -> str:
        return str(self.checkout / ".venv" / "bin" / "broadside")

    def environment(self, **variables: object) -> dict[str, str]:
        fields = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
        fields.pop("PYTHONPATH", None)
        chosen = {"BROADSIDE_DATA_DIR": self.folder / "data", **variables}
        return fields | {name: str(value) for name, value in chosen.items()}

    def run(self, *words: object, allowed: Sequence[int] = (0,)) -> str:
        """Run a command and return its standard output."""
        done = subprocess.run(
            [self.command, *map(str, words)],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        print(f"  {' '.join(map(str, words))[:100]}: exit {done.returncode}", flush=True)  # noqa: T201
        if done.returncode not in allowed:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def start(self, *words: object, **variables: object) -> "subprocess.Popen[bytes]":
        log = (self.folder / f"{words[0]}-{len(self.agents)}.log").open("wb")
        process = subprocess.Popen(
            [self.command, *map(str, words)],
            env=self.environment(**variables),
            cwd=self.folder,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.stack.callback(end, process)
        return process

    def launch(self, name: str, scenario: object, changes: Mapping[str, object]) -> str:
        """Launch a run, wait for its verdict, and return its id."""
        text = self.run(
            *("launch", scenario, "-o", "json", "--api", self.url, *settings({**SHORT, **changes})),
            allowed=DONE,
        )
        run_id = str(json.loads(text)["run_id"])
        self.facts[run_id] = {"name": name}
        return run_id


def settings(changes: Mapping[str, object]) -> Iterator[str]:
    for name, value in changes.items():
        yield "--set"
        yield f"{name}={str(value).lower()}"


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def steady_clock() -> Iterator[Path]:
    """Start a chronyd that reports a correct clock, and yield its command socket."""
    chronyd = shutil.which("chronyd", path=f"{os.environ['PATH']}:/usr/sbin")
    if chronyd is None:
        raise SystemExit("chronyd: not installed; apt-get install chrony")
    with tempfile.TemporaryDirectory(prefix="broadside-clock-") as folder:
        at = Path(folder) / "chronyd.sock"
        directives = (
            *("local stratum 3", "port 0", "cmdport 0"),
            *(f"bindcmdaddress {at}", f"pidfile {folder}/pid"),
        )
        user = pwd.getpwuid(os.getuid()).pw_name
        process = subprocess.Popen([chronyd, "-d", "-x", "-U", "-u", user, *directives])
        try:
            wait_for("chronyd", at.exists)
            yield at
        finally:
            end(process)


def wait_for(what: str, holds: Any, within_s: float = 60) -> Any:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if result := holds():
            return result
        time.sleep(0.5)
    raise SystemExit(f"{what}: not within {within_s:g} s")


def serve(writer: Writer, **variables: object) -> "subprocess.Popen[bytes]":
    process = writer.start("serve", "--port", "0", **variables)
    log = writer.folder / f"serve-{len(writer.agents)}.log"
    result = wait_for("the API", lambda: re.search(r"listening on (\S+)", log.read_text()))
    writer.url = result[1]
    return process


def start_agent(
    writer: Writer, role: str, name: str, clock: Path, *words: object, **changes: object
) -> None:
    chosen: dict[str, object] = {
        "agent_id": name,
        "address": "127.0.0.1",
        "nic": "lo",
        "chronyc_socket": clock,
        "spool_dir": writer.folder / "spool" / name,
        "heartbeat_s": 1,
        "raw": "all",
    }
    variables = {f"BROADSIDE_AGENT_{n.upper()}": value for n, value in (chosen | changes).items()}
    process = writer.start("agent", "--role", role, *words, **variables)
    writer.agents.append(process)


def ready(writer: Writer, *names: str) -> bool:
    document = json.loads(writer.run("agents", "-o", "json", "--api", writer.url))
    well = [agent for agent in document if agent["problem"] is None]
    able = {agent["agent_id"] for agent in well if agent["role"] == "client" or agent["ports"]}
    return able.issuperset(names)


def has_ended(writer: Writer, name: str) -> bool:
    runs = json.loads(writer.run("runs", "-o", "json", "--api", writer.url))
    return any(name in run["run_id"] and run["outcome"] for run in runs)


def files(folder: Path) -> Path:
    """Write the settings and other user files of this fixture."""
    at = folder / "files"
    at.mkdir()
    (at / "scenario.toml").write_text(
        'description = "Every option of TCP traffic and every goal that it can answer"\n'
        "pairs_count = 1\nburst_s = 4\nlead_s = 6\nlate_after_s = 5\n"
        'labels = { team = "network", raw = "failed", witnesses = "[]" }\n'
        'device = { sku = "Premium", region = "westeurope", idps = "off" }\n\n'
        f"[traffic]\n{toml(TRAFFIC)}\n[objective]\n{toml(OBJECTIVE)}"
    )
    begun_at = datetime.now(UTC).replace(microsecond=0)
    rows = [
        f"{begun_at + timedelta(seconds=s):%Y-%m-%dT%H:%M:%SZ},0.25,{1000 + s}"
        for s in range(-60, 1800)
    ]
    (at / "cpu.csv").write_text("\n".join(["time,cpu,sessions", *rows]))
    (at / "telemetry.toml").write_text(
        '[[source]]\ndevice = "fw-a"\ntype = "csv"\nfile = "cpu.csv"\n'
        'time_column = "time"\nread = [\n  { quantity = "cpu_ratio", column = "cpu" },\n'
        '  { quantity = "sessions_count", column = "sessions" },\n]\n'
    )
    (at / "switches.toml").write_text(
        '[idps]\nrest = "off"\n[idps.states]\noff = ["true"]\ndeny = ["true"]\n'
    )
    return at


def toml(values: Mapping[str, object]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def on_loopback(writer: Writer, clock: Path, at: Path) -> None:
    """Run everything that does not need a lab, and leave one run with queued bursts."""
    listen = f"127.0.0.1:{free_port()}"
    coordinator: dict[str, object] = {
        "BROADSIDE_TELEMETRY_FILE": at / "telemetry.toml",
        "BROADSIDE_SWITCHES_FILE": at / "switches.toml",
        "BROADSIDE_HOSTS_LISTEN": listen,
    }
    (at / "coordinator.env").write_text(
        "".join(f"{name}={Path(str(value)).name}\n" for name, value in coordinator.items())
    )
    serving = serve(writer, **coordinator)
    services = f"http={free_port()} https={free_port()} ftp={free_port()}"
    start_agent(
        *(writer, "server", "server-1", clock),
        ports=",".join(str(free_port()) for _ in range(4)),
        services=services,
        echo_port=free_port(),
    )
    start_agent(writer, "client", "client-1", clock)
    wait_for("two agents", lambda: ready(writer, "client-1", "server-1"))
    paced = {"traffic.streams_count": 2, "traffic.stream_bits_per_second": 10_000_000}
    writer.launch("forward", "smoke", paced | {"labels.kind": "forward"})
    writer.launch("reverse", "smoke", paced | {"traffic.direction": "reverse"})
    both = {"traffic.direction": "bidirectional", "bursts_count": 3, "period_s": 12}
    writer.launch("bidirectional, three bursts", "smoke", paced | both)
    aim = {"objective.layer": "payload", "burst_s": 12}
    writer.launch("pass", "smoke", paced | aim | {"objective.target_bits_per_second": 10_000_000})
    writer.launch("fail", "smoke", paced | aim | {"objective.target_bits_per_second": 100_000_000})
    writer.launch(
        "inconclusive",
        "smoke",
        paced | {"objective.target_bits_per_second": 10_000_000, "clock_bound_max_s": 0.000000001},
    )
    text = writer.run(
        *("launch", at / "scenario.toml", "-o", "json", "--api", writer.url), allowed=DONE
    )
    writer.facts[json.loads(text)["run_id"]] = {"name": "every option and goal of TCP"}
    writer.launch(
        "UDP with a goal on loss",
        "smoke",
        paced
        | {
            "traffic.protocol": "udp",
            "traffic.block_bytes": 1_200,
            "objective.loss_max_ratio": 0.5,
            "raw": "all",
        },
    )
    goals = {"objective.success_min_ratio": 0.5, "objective.latency_p99_max_s": 5}
    for engine, options in (
        ("http", {"options.requests_per_second": 10, "options.body_bytes": 50_000}),
        ("https", {"options.requests_per_second": 10, "options.body_bytes": 50_000}),
        ("ftp", {}),
    ):
        named = {f"traffic.{name}": value for name, value in options.items()}
        traffic = {"traffic.engine": engine, "traffic.streams_count": 2} | named
        writer.launch(engine, "smoke", traffic | (goals if options else {}))

    over_https(writer, clock, listen, paced)

    writer.run(
        *("study", "sweep", "smoke", "--over", "traffic.streams_count=1,2", "--name", "streams"),
        *("-o", "json", "--api", writer.url),
        *settings(SHORT | {"traffic.stream_bits_per_second": 10_000_000}),
    )
    soon_at = datetime.now(UTC) + timedelta(seconds=40)
    writer.run(
        *("schedule", "add", "once", "--scenario", "smoke", "--at", soon_at.isoformat()),
        *("-o", "json", "--api", writer.url, *settings(SHORT | paced)),
    )
    writer.run(
        *("schedule", "add", "weekly", "--scenario", "soak", "--cron", "0 2 * * 6"),
        *("--timezone", "Europe/Amsterdam", "--until", "2040-01-01", "--max-runs", "3"),
        *("--overlap", "queue", "--missed", "run-late", "--set", "pairs_count=1", "-o", "json"),
    )
    wait_for("the schedule's run", lambda: has_ended(writer, "-once-"), 180)
    aborted = json.loads(
        writer.run(
            *("launch", "smoke", "--detach", "-o", "json", "--api", writer.url),
            *settings(SHORT | paced | {"burst_s": 60, "period_s": 80, "bursts_count": 2}),
        )
    )["run_id"]
    wait_for(
        "traffic",
        lambda: '"running"' in writer.run("show", aborted, "-o", "json", "--api", writer.url),
    )
    writer.run("abort", aborted, "--reason", "enough seen", "--api", writer.url)
    writer.facts[aborted] = {"name": "aborted"}
    for name in ("tcp-R.json", "udp.json"):
        # An import stores the name as given.
        shutil.copy(IPERF3_FILES / name, writer.folder)
        writer.run("import", "iperf3", name, "-o", "json", "--api", writer.url)
    writer.run(
        *("import", "original", ORIGINAL / "seed-280s-30clients.csv", "-o", "json"),
        *("--firewall-metric", ORIGINAL / "seed-280s-firewall-throughput.csv"),
        *("--api", writer.url, "--set", "objective.target_bits_per_second=100e9"),
        allowed=DONE,
    )
    wait_for(
        "the aborted run's verdict",
        lambda: "not over" not in writer.run("verdict", aborted, allowed=(0, 1, 2, 4)),
    )
    open_run = json.loads(
        writer.run(
            *("launch", "smoke", "--detach", "-o", "json", "--api", writer.url),
            *settings(SHORT | paced | {"lead_s": 3600, "bursts_count": 3, "period_s": 60}),
        )
    )["run_id"]
    writer.facts[open_run] = {"name": "queued, never fired"}
    time.sleep(3)
    for process in writer.agents:
        end(process)
    end(serving)


def over_https(writer: Writer, clock: Path, listen: str, paced: Mapping[str, object]) -> None:
    """Run a pair of remote agents that enroll with a code."""
    for role in ("server", "client"):
        text = writer.run("enroll", "new", "--role", role, "--count", "2", "-o", "json")
        code = json.loads(text)["code"]
        more: dict[str, Any] = {"ports": free_port()} if role == "server" else {}
        start_agent(
            *(writer, role, f"far-{role}", clock, "--coordinator", f"https://{listen}"),
            join=code,
            **more,
        )
    wait_for("their agents", lambda: ready(writer, "far-client", "far-server"))
    writer.launch("two pairs, one over HTTPS", "smoke", {**paced, "pairs_count": 2})


def ask(writer: Writer) -> None:
    """Store the verdict and the seal of all runs by this version."""
    for run in json.loads(writer.run("runs", "-o", "json", "--limit", "100")):
        run_id = run["run_id"]
        text = writer.run("verdict", run_id, "-o", "json", allowed=(0, 1, 2, 4))
        if not text.startswith("{"):
            continue
        again = writer.run("verdict", run_id, "--recompute", "-o", "json", allowed=(0, 1, 2))
        summary = json.loads(text)
        ids = [finding["id"] for finding in summary["findings"]]
        name = "in the lab" if run["created_by"] == "demo" else run["scenario"]
        writer.facts.setdefault(run_id, {"name": name}).update(
            verdict=summary["verdict"],
            plan_sha256=summary["plan_sha256"],
            seal="altered" if "plan-altered" in ids else "verified",
            findings=ids,
            recomputed=again.startswith("{"),
        )


def hide_place(writer: Writer) -> None:
    """Replace the path of the checkout, which is in the arguments of the engines."""
    for path in (writer.folder / "data").glob("*.sqlite3"):
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
            if "entity" in tables:
                update = "UPDATE entity SET properties = replace(properties, ?, ?)"
                database.execute(update, (str(writer.checkout), "/opt/broadside"))


def pack_source(checkout: Path, file: Path, *, preset: int = 9) -> None:
    """Pack the packages for a rolling upgrade as one folder on Python's path."""
    src = checkout / "src"
    roots = [src / "broadside"] if src.is_dir() else [checkout / item for item in FOLDERS]
    top = src if src.is_dir() else checkout
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for root in roots:
            for folder, folders, names in os.walk(root, followlinks=True):
                folders[:] = sorted(set(folders) - {"__pycache__", "lab", "dashboards"})
                for path in (Path(folder) / name for name in sorted(names)):
                    if path.suffix == ".so":
                        continue
                    member = tarfile.TarInfo(str(path.relative_to(top)))
                    member.size = path.stat().st_size
                    with path.open("rb") as content:
                        archive.addfile(member, content)
    file.write_bytes(lzma.compress(packed.getvalue(), preset=preset))


def write(version: str, checkout: Path) -> None:
    target = FIXTURES / version
    if target.exists():
        raise SystemExit(f"{target}: there already; a version's fixtures are written once")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        writer = Writer(checkout.absolute(), folder, stack)
        at = files(folder)
        small = ("--pairs", "2", "--streams", "2", "--seconds", "8", "-o", "json")
        writer.run("demo", *small, "--bursts", "2", allowed=DONE)
        writer.run("demo", *small, "--bursts", "1", "--kill-one", allowed=DONE)
        clock = stack.enter_context(steady_clock())
        on_loopback(writer, clock, at)
        writer.run("token", "add", "grafana", "--role", "viewer", "--expires", "90d")
        writer.run("enroll", "new", "--role", "client", "--count", "2", "-o", "json")
        ask(writer)
        made = folder / "made"
        made.mkdir()
        hide_place(writer)
        writer.run("backup", made / "backup.tar.gz")
        (made / "expected.json").write_text(json.dumps(writer.facts, indent=1) + "\n")
        schemas = subprocess.run(
            [checkout / ".venv/bin/python", Path(__file__).with_name("schemas.py")],
            cwd=checkout,
            env=writer.environment(),
            check=True,
            capture_output=True,
        ).stdout
        (made / "schemas.json.xz").write_bytes(lzma.compress(schemas, preset=9))
        pack_source(checkout, made / "source.tar.xz")
        cpu = (at / "cpu.csv").read_text().splitlines()
        (at / "cpu.csv").write_text("\n".join(cpu[:20]) + "\n")
        shutil.copytree(at, made / "files")
        shutil.copytree(made, target)
    print(f"{target}: {sum(p.stat().st_size for p in target.rglob('*.*'))} bytes")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.write", description=__doc__)
    parser.add_argument("version", help="of the fixtures' folder, such as 0.9.0")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="of the programs to use")
    arguments = parser.parse_args()
    write(arguments.version, arguments.checkout)


if __name__ == "__main__":
    main()
