"""Causes of a failure that a support bundle shows, the most probable one first.

A cause nearer to the host or the range explains those after it: an agent without its engine makes
pairs miss, and missing pairs make a verdict inconclusive.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

Bundle = Mapping[str, Any]
# An agent sends a heartbeat every 5 s.
_SILENT_AFTER: Final = timedelta(seconds=60)
_LINES_MAX: Final = 5
# An error of a service, or the last line of a command that failed.
_LOG_ERROR: Final = re.compile(
    r"\b(CRITICAL|ERROR)\b|\"level\": ?\"(error|critical)\"|^broadside: ", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """Probable cause of a failure.

    Attributes:
        source: File of the bundle with the evidence.
        text: What is wrong.
        fix: Next step, or an empty string.
    """

    source: str
    text: str
    fix: str = ""


def find_causes(bundle: Bundle) -> list[FailureCause]:
    """Return the causes in a bundle.

    Args:
        bundle: Content by file name: parsed JSON, or text of the logs.
    """
    return [cause for find in _FINDERS for cause in find(bundle)]


def _range(bundle: Bundle) -> Iterator[FailureCause]:
    if errors := str(bundle.get("range/terraform-errors.txt", "")).strip():
        parts = re.split(r"^\W*Error: ", errors, flags=re.MULTILINE)[1:] or [errors]
        for part in parts[:_LINES_MAX]:
            text = " ".join(re.sub(r"[│╷╵]", " ", part).split())[:500]
            yield FailureCause(source="range/terraform-errors.txt", text=f"terraform: {text}",
                        fix="correct it and run `broadside up` again")  # fmt: skip
    for line in str(bundle.get("range/explain.txt", "")).splitlines():
        if " BROKEN " in line:
            yield FailureCause(source="range/explain.txt", text=" ".join(line.split()),
                        fix="see `broadside up --explain`")  # fmt: skip
    for vm in bundle.get("range/boot.json") or ():
        if not vm["ready"]:
            yield FailureCause(source="range/boot.json", text=f"VM {vm['name']}: {vm['reason']}",
                        fix="`broadside up` waits for it again")  # fmt: skip


def _checks(bundle: Bundle) -> Iterator[FailureCause]:
    for check in bundle.get("checks.json") or ():
        if check["required"] and not check["ok"]:
            yield FailureCause(source="checks.json", text=f"{check['name']}: {check['detail']}",
                        fix=check["fix"] or "")  # fmt: skip


def _agents(bundle: Bundle) -> Iterator[FailureCause]:
    agents = bundle.get("agents.json") or []
    created_at = datetime.fromisoformat(bundle["manifest.json"]["created_at"])
    problems = _grouped((agent["problem"], agent["agent_id"]) for agent in agents
                        if agent.get("problem"))  # fmt: skip
    yield from (
        FailureCause(source="agents.json", text=f"{names}: {text}") for text, names in problems
    )
    unsure = [agent["agent_id"] for agent in agents
              if not (agent.get("clock") or {"synchronised": True})["synchronised"]]  # fmt: skip
    if unsure:
        text = f"{_few(unsure)}: the clock is not synchronised"
        yield FailureCause(
            source="agents.json", text=text, fix="start chronyd there: `chronyc tracking`"
        )
    versions = Counter(agent["broadside_version"] for agent in agents)
    if len(versions) > 1:
        listed = ", ".join(f"{count} x {name}" for name, count in versions.most_common())
        yield FailureCause(source="agents.json", text=f"agents have different versions: {listed}",
                    fix="install one version everywhere")  # fmt: skip
    if bundle["manifest.json"].get("live"):
        silent = [
            agent["agent_id"]
            for agent in agents
            if created_at - datetime.fromisoformat(agent["beat_at"]) > _SILENT_AFTER
        ]
        if silent:
            yield FailureCause(
                source="agents.json",
                text=f"{_few(silent)}: no heartbeat for a minute",
                fix="see `systemctl status broadside-agent` there",
            )


def _runs(bundle: Bundle) -> Iterator[FailureCause]:
    """Yield the causes of the newest run: outcomes of its pairs, then its findings."""
    newest = next((name for name in bundle if name.startswith("runs/")), None)
    if newest is None:
        return
    run = bundle[newest]
    reasons = _grouped((pair["reason"], pair["pair"]) for pair in run["pairs"] if pair["reason"])
    for text, names in reasons:
        yield FailureCause(source=newest, text=f"{names}: {text}")
    if run["status"].get("cancel_reason"):
        yield FailureCause(
            source=newest, text=f"the run was cancelled: {run['status']['cancel_reason']}"
        )
    for finding in (run["summary"] or {}).get("findings") or ():
        if finding["severity"] in ("problem", "warning"):
            yield FailureCause(
                source=newest, text=finding["sentence"], fix=finding["next_step"] or ""
            )


def _letters(bundle: Bundle) -> Iterator[FailureCause]:
    letters = bundle.get("deadletters.json") or ()
    for text, names in _grouped((one["reason"], str(one["sequence_number"])) for one in letters):
        yield FailureCause(source="deadletters.json", text=f"dead letters {names}: {text}",
                    fix="see `broadside deadletters explain`")  # fmt: skip


def _parts(bundle: Bundle) -> Iterator[FailureCause]:
    for part, error in (bundle["manifest.json"].get("missing") or {}).items():
        if not error.startswith("none"):
            yield FailureCause(source="manifest.json", text=f"{part} could not be read: {error}")


def _logs(bundle: Bundle) -> Iterator[FailureCause]:
    for name, text in bundle.items():
        if name.startswith("logs/"):
            lines = [
                line.strip() for line in str(text).splitlines() if _LOG_ERROR.search(line.strip())
            ]
            for line in list(dict.fromkeys(lines))[-_LINES_MAX:]:
                yield FailureCause(source=name, text=line[:500])


def _grouped(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each text with the names that have it, the most frequent text first."""
    names: dict[str, list[str]] = {}
    for text, name in pairs:
        names.setdefault(text, []).append(name)
    by_count = sorted(names.items(), key=lambda item: -len(item[1]))
    return [(text, _few(item)) for text, item in by_count[:_LINES_MAX]]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


_FINDERS: Final[Sequence[Callable[[Bundle], Iterator[FailureCause]]]] = (
    _range, _checks, _agents, _runs, _letters, _parts, _logs,
)  # fmt: skip
