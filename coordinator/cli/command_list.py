"""All commands by group, with help line, module and examples."""

from collections.abc import Mapping
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "First steps": {
        "demo": "Build the lab, start the fleet, fire, judge, take all down again; the run stays.",
        "doctor": "Check what this host needs, and print the fix for what is wrong.",
        "scenarios": "List the scenarios, or show one with every field that a launch can override.",
        "lab": "Azure in miniature on this host: namespaces, a firewall that counts, clocks.",
        "serve": "Look after runs and answer the REST API until interrupted.",
        "agent": "Run an agent until it is told to stop.",
    },
    "Run": {
        "launch": "Launch a run and, unless detached, follow it to its verdict.",
        "watch": "Follow a run to its verdict; leaving (q, Ctrl-C) does not abort it.",
        "abort": "Stop a run: agents stop traffic within seconds, what was measured is kept.",
        "estimate": (
            "Say what a run would cost and whether the fleet could carry it now; launch nothing."
        ),
        "price": "Say what a run has cost so far, and will have cost at its end.",
        "schedule": (
            "Launch runs at instants to come; of any number of `broadside serve`, one fires each."
        ),
        "study": "Series of runs that answer one question.",
    },
    "Look": {
        "runs": "List runs, newest first, with how each ended.",
        "show": "Show where a run stands, burst by burst.",
        "verdict": "Print a run's verdict with its figures; the exit code says it too.",
        "bursts": "List a run's bursts: where each stands, and what it showed.",
        "pairs": "List the pairs of one burst: who took each, how it ended, what it showed.",
        "series": "Print a burst's seconds, once it is over; unknown is empty or null, never zero.",
        "reconciliation": (
            "Hold the fleet's ledger against the firewall's: the run, and each burst."
        ),
        "agents": (
            "List the agents that were heard of: role, state, engine, clock, and what is wrong."
        ),
        "raw": (
            "Print what an engine wrote, to the byte: iperf3's JSON, or one JSON document a line."
        ),
    },
    "Report and compare": {
        "report": "Write a run's report: everything an engineer signs, in one file.",
        "chart": "Draw one of a run's charts into a file, or list them.",
        "export": "Write a run's seconds, pairs, bursts and summary as tables.",
        "compare": "Compare two runs, runs with two labels, or bursts before and after a time.",
        "aggregate": (
            "Sum many runs by time, scenario, label, device or verdict: rates, coverage, residual."
        ),
        "import": "Make runs of what other tools measured.",
        "advise": "Arithmetic that saves a burst.",
    },
    "Look after": {
        "backup": "Copy all that the coordinator stores into one file, also while it is at work.",
        "restore": "Lay a backup out as BROADSIDE_DATA_DIR, which must be new or empty.",
        "token": "Make, list and revoke tokens for the API.",
        "enroll": "Let agents of other hosts in, list them, and shut them out.",
        "mcp": "Answer an assistant on standard input and output (Model Context Protocol).",
        "audit": "List what was changed, newest first: who, what, from where, and how it ended.",
        "deadletters": "List, explain, send again and purge what agents set aside as dead letters.",
        "prune": "List the runs that are old enough to forget; with --delete, remove all of them.",
    },
    "Range on Azure": {
        "up": "Build the range, or bring it to what the variables say; wait until its agents are "
        "ready.",
        "scale": (
            "Set how many clients and how many servers there are: 30 before a test, 0 after it."
        ),
        "park": (
            "Stop what costs while nobody tests: the fleet to 0, firewall and Bastion given back."
        ),
        "unpark": "Bring firewall and Bastion back, and the routes to the firewall's new address.",
        "down": "Destroy the range, and prove that nothing with its tag is left (else exit 1).",
        "capacity": "Capacity units of an Azure Firewall: look, raise for a test, put back.",
        "policy-switch": (
            "Set an Azure Firewall policy's mode of intrusion detection or threat intelligence."
        ),
    },
}
# Used by containers, systemd units and install scripts. They are in docs/commands.md and not in the
# help.
SERVICE_COMMANDS: Final[Mapping[str, str]] = {
    "healthy": "Exit 0 if this host's coordinator or agent works, else print why and exit 1.",
    "baseline": "Print the newest accepted run of a scenario that has a rate and did not fail.",
    "emulators-ready": "Wait for the Service Bus emulator, then create the tables in Azurite.",
}
COMMANDS: Final = {
    name: line for group in (*GROUPS.values(), SERVICE_COMMANDS) for name, line in group.items()
}

# Files that these commands write can contain keys, join codes or Terraform state, so only the owner
# should be able to read them.
PRIVATE_COMMANDS: Final = frozenset(
    {"agent", "backup", "restore", "serve", "token", "enroll", "up", "scale", "park", "unpark"}
    | {"down", "demo"}
)

# Module in this package, and its function or command group.
PLACES: Final = {
    "demo": "demo.demo",
    "doctor": "doctor.doctor",
    "scenarios": "run_commands.list_scenarios",
    "lab": "lab_commands.app",
    "serve": "serve.serve",
    "agent": "agent_command.agent",
    "launch": "run_commands.launch",
    "watch": "run_commands.watch",
    "abort": "run_commands.abort",
    "estimate": "estimate_commands.estimate",
    "price": "estimate_commands.price",
    "schedule": "schedule_commands.app",
    "study": "study_commands.app",
    "runs": "result_commands.list_runs",
    "show": "run_commands.show",
    "verdict": "run_commands.verdict",
    "bursts": "result_commands.bursts",
    "pairs": "result_commands.pairs",
    "series": "result_commands.series",
    "reconciliation": "result_commands.reconciliation",
    "agents": "result_commands.agents",
    "raw": "storage.raw",
    "report": "report_commands.report",
    "chart": "report_commands.chart",
    "export": "report_commands.export",
    "compare": "compare_commands.compare",
    "aggregate": "result_commands.aggregate",
    "import": "import_commands.app",
    "advise": "advise_commands.app",
    "backup": "backup_commands.backup",
    "restore": "backup_commands.restore",
    "token": "token_commands.app",
    "enroll": "enroll_commands.app",
    "mcp": "assistant.mcp_server",
    "audit": "audit_commands.audit",
    "deadletters": "dead_letter_commands.app",
    "prune": "storage.prune",
    "up": "range_commands.up",
    "scale": "range_commands.scale",
    "park": "range_commands.park",
    "unpark": "range_commands.unpark",
    "down": "range_commands.down",
    "capacity": "capacity_commands.app",
    "policy-switch": "policy_command.policy_switch",
    "healthy": "health_commands.healthy",
    "baseline": "result_commands.baseline",
    "emulators-ready": "health_commands.emulators_ready",
}

# Arguments after `broadside` for each command.
EXAMPLES: Final = {
    "demo": "demo --pairs 8 --seconds 15",
    "lab up": "lab up --pairs 8 --scale 100",
    "lab profile": "lab profile bypass",
    "lab down": "lab down",
    "serve": "serve --port 8080",
    "agent": "agent --role server --ports 5201-5204",
    "launch": "launch loopback --set burst=10s --set traffic.streams_count=8",
    "estimate": "estimate jumbo-1740s --set device.sku=premium",
    "price": "price last",
    "schedule add": 'schedule add saturday --scenario soak --cron "0 2 * * 6"',
    "schedule list": "schedule list",
    "schedule show": "schedule show saturday",
    "schedule pause": "schedule pause saturday",
    "schedule resume": "schedule resume saturday",
    "schedule remove": "schedule remove saturday",
    "watch": "watch last",
    "runs": "runs --verdict fail --from 2026-11-01",
    "aggregate": "aggregate --group-by week --label device=fw1",
    "bursts": "bursts last",
    "pairs": "pairs last --burst 2",
    "series": "series last --format csv",
    "reconciliation": "reconciliation last",
    "agents": "agents --json",
    "show": "show last",
    "verdict": "verdict last",
    "abort": 'abort last --reason "wrong device"',
    "report": "report last --format pdf",
    "export": "export last --format xlsx",
    "chart": "chart last throughput --output rate.png",
    "raw": "raw last pair-003 --side server",
    "compare": "compare previous last --fail-if 'received < -3%'",
    "import original": "import original stats.csv --firewall-metric throughput.csv",
    "import iperf3": "import iperf3 results/one.json results/two.json",
    "scenarios": "scenarios smoke",
    "prune": "prune --older-than 90",
    "study sweep": "study sweep native-64-flows --over traffic.streams_count=1,8,64",
    "study search": "study search scale-180g --min 100G --max 200G",
    "study ab": "study ab scale-180g --a device.path=firewall --b device.path=bypass",
    "study matrix": "study matrix inspection --mode idps-off --mode idps-on --rounds 3",
    "study scaleout": "study scaleout scale-180g --offer 20G,150G,20G --for 150G",
    "study drill": "study drill burst-280s --switch failover --state standby --at 60",
    "study list": "study list",
    "study show": "study show last",
    "study chart": "study chart last --output knee.png",
    "study report": "study report last --output matrix.pdf",
    "study abort": "study abort last",
    "advise window": "advise window --rtt 2ms --rate 5G --window 128K",
    "deadletters list": "deadletters list",
    "deadletters explain": "deadletters explain 17",
    "deadletters resend": "deadletters resend 17",
    "deadletters purge": "deadletters purge --all",
    "token add": "token add grafana --role viewer --expires 90d",
    "token list": "token list",
    "token revoke": "token revoke grafana",
    "backup": "backup /var/backups/broadside.tar.gz",
    "restore": "restore /var/backups/broadside.tar.gz",
    "enroll new": "enroll new --role client --count 30 --expires 1h",
    "enroll new-authority": "enroll new-authority",
    "enroll list": "enroll list",
    "enroll revoke": "enroll revoke c001",
    "mcp": "mcp --api https://broadside.example.net --token-file viewer.token",
    "audit": "audit --limit 20",
    "up": "up --vars examples/scale-180g.tfvars",
    "scale": "scale 30",
    "park": "park --dry-run",
    "unpark": "unpark --dry-run",
    "down": "down --dry-run",
    "capacity show": "capacity show",
    "capacity set": "capacity set --min 20 --max 20 -- broadside launch scale-180g",
    "capacity units": "capacity units 150G",
    "capacity restore": "capacity restore",
    "policy-switch": "policy-switch --policy ID --idps Deny",
    "doctor": "doctor --as client",
    "healthy": "healthy agent",
    "baseline": "baseline burst-30s",
    "emulators-ready": "emulators-ready http://servicebus:5300/health",
}
