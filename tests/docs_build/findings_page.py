"""Reference page of all findings.

Id, effect, text and next step are those of the calls in the code that create the finding. Findings
whose id is computed from a table of the code have a row for each entry of the table.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from broadside.coordinator.core import run_trends
from broadside.coordinator.core.judge import bottleneck
from broadside.coordinator.core.judge.bottleneck.connection_causes import CONNECTION_CAUSES
from broadside.coordinator.core.judge.checks import counter_checks, record_checks
from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, RUN_CHECKS
from broadside.coordinator.core.judge.checks.pair_texts import PAIR_STATES
from broadside.coordinator.core.measure import outages
from broadside.coordinator.core.measure.device import device_metrics
from broadside.coordinator.core.summary import UNKNOWN, Bottleneck
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, MetricSource
from broadside.coordinator.core.verdict_reason import FAIL_IDS
from broadside.coordinator.imports import stored_imports
from tests.docs_build.code_texts import (
    FIELD,
    KNOWN_VALUES,
    Module,
    Scope,
    arguments_of,
    called,
    evaluate,
    is_reachable,
    load,
    returned_texts,
    scope_of,
    texts,
)
from tests.docs_build.constants_page import ROOT

FOLDERS: Final = ("coordinator/core", "coordinator/imports")
HEAD: Final = """\
# Findings

A finding is one statement of a report. This list is generated from the code. The report prints the
ids. *Effect* is the effect on the verdict: *fail* or *inconclusive* as in the
[order of precedence](verdict.md#order-of-precedence), *none* if the finding does not affect the
verdict. If there are two effects, the settings of the run decide. *Words in italics* stand for a
value, text in [square brackets] is there if it applies, and a slash separates alternatives."""
# Functions that create a finding, with the names of their arguments.
MAKERS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(
        ("problem", "inconclusive", "warning", "caution", "note"),
        ("id", "weight", "sentence", "next_step"),
    ),
    **dict.fromkeys(("Finding", "MeasuredFinding", "Note"), ()),
}
# Functions that create any finding.
GENERAL: Final = frozenset(
    {"check_types.inconclusive", "summary.finding", "summary.without_value"}
    | {f"summary.{maker}" for maker in MAKERS}
    | {"import_runs.note_findings"}
)
IMPORTED: Final = "Imported run: "
CAUSES_FILE: Final = "coordinator/core/judge/reconciliation/residual_causes.py"


@dataclass
class Entry:
    """One finding of the reference.

    Attributes:
        effects: Effects on the verdict.
        sentences: Templates of the sentence.
        steps: Templates of the next step.
    """

    effects: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def add(self, effect: str, sentences: Sequence[str], steps: Sequence[str]) -> None:
        """Add what one call creates."""
        for known, new in (
            (self.effects, (effect,)),
            (self.sentences, sentences),
            (self.steps, steps),
        ):
            known += [one for one in new if one and one not in known]


def all_findings() -> dict[str, Entry]:
    """Return the findings that the code can create, by id."""
    by_id: dict[str, Entry] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = load(path)
            for call in module.calls:
                _add_call(call, module, path, by_id)
    for cause in (*bottleneck.CAUSES, *CONNECTION_CAUSES):
        steps = [cause.advice] if cause.advise is None else _returned(cause.advise)
        known = Bottleneck(
            name=cause.name, evidence=("*evidence*",), refuted_by=f"*{cause.refuted_by}*"
        )
        _add_bottleneck(known, steps, by_id)
    steps = [*(row.advice for row in bottleneck.NEXT_RUNS), bottleneck.CONNECTIONS_NEXT]
    for evidence, missing in product((("*evidence*",), ()), (("*missing data*",), ())):
        unknown = UNKNOWN.model_copy(update={"evidence": evidence, "not_known": missing})
        _add_bottleneck(unknown, steps, by_id)
    for id, step in stored_imports._NEXT_STEPS.items():
        by_id[id].add("", (), [f"{IMPORTED}{step or 'Nothing'}"])
    return dict(sorted(by_id.items()))


def _add_call(call: ast.Call, module: Module, path: Path, by_id: dict[str, Entry]) -> None:
    """Add the findings that a call creates, if it creates any."""
    owner = module.owners.get(call)
    place = f"{module.name}.{'' if owner is None else owner.name}"
    if place in GENERAL:
        return
    for values in TABLES.get(place, _no_table)():
        scope = scope_of(call, module, values)
        for maker in _makers(call.func, scope) if is_reachable(call, scope) else ():
            given = arguments_of(call, MAKERS[maker])
            if "sentence" not in given:
                continue
            for one in _calls_of(given, scope):
                steps = texts(given["next_step"], one) if "next_step" in given else ()
                sentences = texts(given["sentence"], one)
                for id in texts(given["id"], one):
                    effect = _effect(id, maker, given)
                    by_id.setdefault(id, Entry()).add(effect, sentences, steps)


def _calls_of(given: Mapping[str, ast.expr], scope: Scope) -> Sequence[Scope]:
    """Return one scope for each call of a function that passes on texts of its parameters."""
    function, module = scope.function, scope.module
    if function is None:
        return (scope,)
    names = {
        node.id for one in given.values() for node in ast.walk(one) if isinstance(node, ast.Name)
    }
    passed = {
        one.arg
        for one in function.args.args
        if one.annotation is not None and ast.unparse(one.annotation).startswith("str")
    }
    calls = [
        call
        for call in module.calls
        if isinstance(call.func, ast.Name) and call.func.id == function.name
    ]
    if not calls or not names & passed - scope.values.keys():
        return (scope,)
    return [called(function, call, scope_of(call, module, scope.values), module) for call in calls]


def _makers(function: ast.expr, scope: Any) -> Sequence[str]:
    """Return the names of the makers that an expression can call."""
    if isinstance(function, ast.Name):
        if function.id in MAKERS:
            return (function.id,)
        if scope.function is None:
            return ()
        return [
            name.id
            for node in ast.walk(scope.function)
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == function.id
            and isinstance(node.value, ast.IfExp)
            for name in (node.value.body, node.value.orelse)
            if isinstance(name, ast.Name) and name.id in MAKERS
        ]
    made = evaluate(function, scope) if isinstance(function, ast.Attribute) else None
    name = getattr(made, "__name__", "")
    return (name,) if name in MAKERS else ()


def _effect(id: str, maker: str, given: Mapping[str, ast.expr]) -> str:
    """Return the effect on the verdict."""
    literal = {name: getattr(node, "value", None) for name, node in given.items()}
    is_problem = literal.get("kind") == "verdict" and literal.get("severity") == "problem"
    if maker not in ("problem", "inconclusive") and not is_problem:
        return "none"
    return "fail" if id in FAIL_IDS else "inconclusive"


def _add_bottleneck(found: Bottleneck, steps: Sequence[str], by_id: dict[str, Entry]) -> None:
    finding = found.finding()
    by_id.setdefault(finding.id, Entry()).add("none", [finding.sentence], steps)


def _returned(function: Any) -> Sequence[str]:
    """Return the texts that a function can return."""
    module = load(Path(function.__code__.co_filename).resolve())
    node = module.functions[function.__name__]
    return list(returned_texts(node, Scope(module, node)))


# Findings with computed ids: the values of the variables, for each entry of the table.


def _of_states() -> Iterator[Mapping[str, Any]]:
    for state in PAIR_STATES:
        text = f"*number* of *number* pairs {state.text}: *pairs*."
        yield {"state": state, "text": text}


def _of_rules() -> Iterator[Mapping[str, Any]]:
    for rule, sentence in record_checks._SENTENCES.items():
        text = FIELD.sub(r"*\1*", sentence).replace("_", " ")
        yield {"rule": rule, "items": None, "_describe": lambda _, text=text: f"*pair*: {text}"}


def _of_outages() -> Iterator[Mapping[str, Any]]:
    for prefix, who in (("", "*number* of *number* agents"), ("coordinator-", "the coordinator")):
        for template in outages._TEMPLATES.values():
            named = template._replace(id=f"{prefix}{template.id}")
            text = template.what.format(who=who, count="*number*")
            yield {"template": named, "sentence": f"{text} *time*"}


def _of_causes() -> Iterator[Mapping[str, Any]]:
    module = load(ROOT / CAUSES_FILE)
    for call in module.calls:
        if not isinstance(call.func, ast.Name) or call.func.id not in ("offer", "ResidualCause"):
            continue
        if module.owners[call].name == "offer":
            continue
        given = arguments_of(call, ("id", "low", "high", "sentence"))
        scope = scope_of(call, module)
        for sentence in texts(given["sentence"], scope):
            for id in texts(given["id"], scope):
                yield {"cause": SimpleNamespace(id=id, sentence=sentence)}


def _of_thresholds() -> Iterator[Mapping[str, Any]]:
    for threshold in ALL_THRESHOLDS:
        interval = "*value and interval*" if threshold.source is MetricSource.CANARY else None
        yield {
            "threshold": threshold,
            "label": f"[*device or direction*: ]{threshold.label}",
            "value": SimpleNamespace(text=interval, coverage="*known part*"),
        }


def _of_missed_target() -> Iterator[Mapping[str, Any]]:
    for advice in ("*Next step of the finding `bottleneck-...` of the burst*", None):
        burst = SimpleNamespace(bottleneck_details=SimpleNamespace(advice=advice))
        yield {"inputs": SimpleNamespace(burst=burst)}


TABLES: Final[Mapping[str, Any]] = {
    "rate_checks._below_limit": _of_missed_target,
    "observations._pair_findings": _of_states,
    "observations.residual_findings": _of_causes,
    "record_checks.check_consistency": _of_rules,
    "outages._finding": _of_outages,
    "device_metrics.telemetry_findings": lambda: (
        {"kind": kind, "item": item} for kind, item in device_metrics._ISSUES.items()
    ),
    "thresholds_check._compare": _of_thresholds,
    "run_trends._drift": lambda: (
        {"trend": SimpleNamespace(name=name)} for name in run_trends._TREND_LABELS
    ),
}


# The next step of missing pairs is that of the state with the most pairs.
_STATE_IDS: Final = ", ".join(f"`{state.state}-pairs`" for state in PAIR_STATES)
KNOWN_VALUES["pair_texts.missing_pairs_step"] = {
    "states": [[SimpleNamespace(next_step=f"*Next step of the most frequent one of {_STATE_IDS}*")]]
}
_CAUSE_IDS: Final = ", ".join(f"`{id}`" for id in counter_checks.CAUSE_STEPS)
KNOWN_VALUES["counter_checks._residual_step"] = {
    "step": f"*Next step of the first cause* ({_CAUSE_IDS}, `unknown`)"
}


def _no_table() -> Sequence[Mapping[str, Any]]:
    return ({},)


def findings_page() -> str:
    """Return the reference of all findings as Markdown."""
    checks: list[Any] = [*BURST_CHECKS, *RUN_CHECKS]
    by_check: dict[str, list[str]] = {}
    for check in checks:
        for id in check.findings.split():
            by_check.setdefault(id, []).append(f"[{check.id}](checks.md#{check.id})")
    parts = [HEAD]
    for id, entry in all_findings().items():
        parts.append(f"\n## {id}\n")
        checked = f" Check: {', '.join(by_check[id])}." if id in by_check else ""
        parts.append(f"- Effect: {' or '.join(sorted(entry.effects))}.{checked}")
        parts.append(f"- Meaning: {_listed(entry.sentences)}")
        if entry.steps:
            parts.append(f"- Next step: {_listed(entry.steps)}")
    return "\n".join(parts) + "\n"


def _listed(alternatives: Sequence[str]) -> str:
    shown = [_sentence(text) for text in alternatives]
    return shown[0] if len(shown) == 1 else "".join(f"\n    - {text}" for text in shown)


def _sentence(text: str) -> str:
    """Return a template with a space before an optional sentence, and a full stop."""
    spaced = re.sub(r"\.(?=\*)", ". ", text)
    return spaced if spaced.endswith((".", "*", "]")) else f"{spaced}."
