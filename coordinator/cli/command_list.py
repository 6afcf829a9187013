"""Names of all commands, with their help, their function and an example.

Reading this list does not import any command.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Command(NamedTuple):
    """Command of the command line.

    Attributes:
        function: Module in this package, and its function or command group.
        help: First sentence of the help.
    """

    function: str
    help: str


GROUPS: Final[Mapping[str, Mapping[str, Command]]] = {
    "First steps": {
        "demo": Command("demo.demo", "Run a complete test in a lab on this host."),
        "doctor": Command("doctor.doctor", "Check this host, and print how to fix each problem."),
        "scenarios": Command("run_commands.scenarios", "List the scenarios, or show one of them."),
        "lab": Command("lab_commands.app", "Build, change and remove a test network on this host."),
        "serve": Command("service_commands.serve", "Run the coordinator with its REST API."),
        "agent": Command("service_commands.agent", "Run an agent on this host."),
    },
    "Run": {
        "launch": Command("run_commands.launch", "Start a run and wait for its verdict."),
        "watch": Command("run_commands.watch", "Show a run until its verdict."),
        "label": Command("run_commands.label", "Set and remove labels of a run."),
        "abort": Command("run_commands.abort", "Abort a run and keep what was measured."),
        "estimate": Command("cost_commands.estimate", "Estimate the cost of a run."),
        "price": Command("cost_commands.price", "Show the cost of a run."),
        "schedule": Command("schedule_commands.app", "Start runs at given times."),
        "study": Command("study_commands.app", "Run a series of runs that answers one question."),
    },
    "Results": {
        "runs": Command("result_commands.runs", "List runs, newest first."),
        "show": Command("run_commands.show", "Show the state of a run and of its bursts."),
        "verdict": Command("run_commands.verdict", "Print the verdict of a run and its metrics."),
        "bursts": Command("result_commands.bursts", "List the bursts of a run."),
        "pairs": Command("result_commands.pairs", "List the pairs of a burst."),
        "series": Command("result_commands.series", "Print the seconds of a burst."),
        "reconciliation": Command(
            "result_commands.reconciliation", "Compare the fleet with the device counter."
        ),
        "agents": Command("result_commands.agents", "List the agents and their state."),
        "raw": Command("result_commands.raw", "Print the raw output of an engine."),
    },
    "Report and compare": {
        "report": Command("report_commands.report", "Write the report of a run to a file."),
        "chart": Command("report_commands.chart", "Write a chart of a run, or list the charts."),
        "export": Command("report_commands.export", "Write the results of a run as tables."),
        "compare": Command("compare_commands.compare", "Compare runs or groups of bursts."),
        "aggregate": Command("result_commands.aggregate", "Aggregate the results of many runs."),
        "import": Command("import_commands.app", "Import results of other tools as runs."),
    },
    "Administration": {
        "backup": Command("backup_commands.backup", "Copy the local store into one file."),
        "restore": Command("backup_commands.restore", "Restore a backup, or test it."),
        "token": Command("access_commands.tokens", "Create, list and revoke API tokens."),
        "enroll": Command("access_commands.enrollment", "Enroll, list and revoke agents."),
        "mcp": Command("mcp_command.mcp", "Serve an assistant (Model Context Protocol)."),
        "audit": Command("maintenance_commands.audit", "List changes, newest first."),
        "deadletters": Command(
            "maintenance_commands.dead_letters", "List, explain, resend and delete dead letters."
        ),
        "prune": Command("maintenance_commands.prune", "List or delete old runs."),
        "support-bundle": Command(
            "support_commands.support_bundle", "Write logs, state and versions to one file."
        ),
    },
    "Range on Azure": {
        "up": Command("range_commands.up", "Create or update the range."),
        "scale": Command("range_commands.scale", "Set the number of clients and servers."),
        "park": Command("range_commands.park", "Stop the parts of the range that cost most."),
        "unpark": Command("range_commands.unpark", "Start the firewall and Bastion again."),
        "down": Command("range_commands.down", "Destroy the range and check that nothing remains."),
        "capacity": Command(
            "azure_firewall_commands.capacity", "Show and set capacity units of an Azure Firewall."
        ),
        "policy-switch": Command(
            "azure_firewall_commands.policy_switch", "Set a mode of an Azure Firewall policy."
        ),
    },
}
# Used by containers, systemd units and install scripts. They are in /docs/commands.html of the
# coordinator and not in the help.
SERVICE_COMMANDS: Final[Mapping[str, Command]] = {
    "healthy": Command("service_commands.healthy", "Check the coordinator or agent on this host."),
    "baseline": Command("result_commands.baseline", "Print the newest accepted run of a scenario."),
    "emulators-ready": Command(
        "service_commands.emulators_ready", "Wait for the Service Bus emulator."
    ),
}
COMMANDS: Final = {
    name: command
    for group in (*GROUPS.values(), SERVICE_COMMANDS)
    for name, command in group.items()
}

# Files that these commands write can contain keys, join codes or Terraform state, so only the owner
# should be able to read them.
PRIVATE_COMMANDS: Final = frozenset(
    {"agent", "backup", "restore", "serve", "token", "enroll", "up", "scale", "park", "unpark"}
    | {"down", "demo", "support-bundle"}
)

# Arguments of an example, by command. A command that is not listed needs none.
_EXAMPLES: Final = {
    "demo": "--pairs 8 --seconds 15",
    "lab up": "--pairs 8 --scale 100",
    "lab profile": "bypass",
    "serve": "--port 8080",
    "agent": "--role server --ports 5201-5204",
    "launch": "loopback --set burst=10s --set traffic.streams_count=8",
    "estimate": "jumbo-1740s --set device.sku=premium",
    "schedule add": 'saturday --scenario soak --cron "0 2 * * 6"',
    "show": "last --watch",
    "runs": "--verdict fail --since 2026-11-01",
    "label": "last baseline=accepted",
    "aggregate": "--group-by week --label device=fw1",
    "pairs": "last --burst 2",
    "series": "last -o csv",
    "agents": "-o wide",
    "abort": 'last --reason "wrong device"',
    "report": "last -o pdf",
    "export": "last -o xlsx",
    "chart": "last throughput --file rate.png",
    "raw": "last pair-003 --side server",
    "compare": "previous last --fail-if 'received < -3%'",
    "import original": "stats.csv --firewall-metric throughput.csv",
    "import iperf3": "results/one.json results/two.json",
    "scenarios": "smoke",
    "prune": "--older-than 90",
    "study sweep": "native-64-flows --over traffic.streams_count=1,8,64",
    "study search": "scale-180g --min 100G --max 200G",
    "study ab": "scale-180g --a firewall --b bypass --b-set device.path=bypass",
    "study matrix": "inspection --mode idps-off --mode idps-on --rounds 3",
    "study inspection-under-load": "inspection-under-load --offer 20G,60G,100G "
    "--set traffic.canary.consent=Name",
    "study scaleout": "scale-180g --offer 20G,150G,20G --target 150G",
    "study drill": "burst-280s --switch failover --state standby --at 60",
    "study chart": "last --file knee.png",
    "study report": "last --file matrix.pdf",
    "deadletters purge": "--all",
    "token add": "grafana --role viewer --expires 90d",
    "token revoke": "grafana",
    "backup": "/var/backups/broadside.tar.gz",
    "restore": "/var/backups/broadside.tar.gz",
    "enroll new": "--role client --count 30 --expires 1h",
    "enroll revoke": "c001",
    "mcp": "--api https://broadside.example.net --token-file viewer.token",
    "audit": "--limit 20",
    "support-bundle": "--read broadside-support-20261127T190000Z.tar.gz",
    "up": "--vars examples/scale-180g.tfvars",
    "scale": "30",
    "park": "--dry-run",
    "unpark": "--dry-run",
    "down": "--dry-run",
    "capacity set": "--min 20 --max 20 -- broadside launch scale-180g",
    "policy-switch": "--policy ID --idps Deny",
    "doctor": "--as client",
    "healthy": "agent",
    "baseline": "burst-30s",
    "emulators-ready": "http://servicebus:5300/health",
}
# Example values of other required arguments, by their name in the help.
_EXAMPLE_VALUES: Final = {"RUN": "last", "STUDY": "last", "SEQ": "17", "SCHEDULE": "saturday"}


def example_of(path: str, required: list[str]) -> str:
    """Return an example of a command, without `broadside`.

    Args:
        path: Command, with its group if it has one.
        required: Names of the required arguments.
    """
    arguments = _EXAMPLES.get(path)
    if arguments is None:
        arguments = " ".join(_EXAMPLE_VALUES[name] for name in required)
    return f"{path} {arguments}".rstrip()
