"""Injection of commands, paths and terminal escapes into every text field.

:func:`text_fields` lists the fields of all models. :data:`KINDS` states the handling of invalid
text in each field. :func:`written` returns the output of the real writers of arguments, scripts and
configurations for an unvalidated value.
"""

import importlib
import pkgutil
import types
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from broadside import exchange
from broadside.agent.tunnel import DeviceSettings, TunnelFailed, device_commands
from broadside.exchange.engines import engines, traffic_of
from broadside.exchange.engines.port import (
    Certificate,
    ClientRequest,
    Launch,
    ServerRequest,
    Tool,
    Unsupported,
)
from broadside.exchange.messages import TEXT_MAX_CHARS, Endpoint, Job, Message, Tunnel, tunnel_of

# Marker that is in every injected text and that we never use.
MARK: Final = "bsinject"
INJECTIONS: Final = (
    f"10.1.1.1\n{MARK}",
    f"10.1.1.1\r{MARK}",
    f"10.1.1.1; {MARK}",
    f"$({MARK})",
    f"`{MARK}`",
    f"10.1.1.1' {MARK} '",
    f'10.1.1.1" {MARK} "',
    f"10.1.1.1\0{MARK}",
    f"\x1b[2J{MARK}",
    f"10.1.1.1\u2028{MARK}",
    f"10.1.1.1\x85{MARK}",
    f"\u202e{MARK}",
    f"::1%\n!{MARK}",
    f"fe80::1%{MARK}",
    f"--{MARK}",
    f"-{MARK}",
    f"../../{MARK}\n",
    f"{MARK} | sh",
    f"{MARK}&&id",
    f"${{{MARK}}}",
    f"#{MARK}",
    f"{MARK}\\",
    f"{MARK}>/etc/passwd",
    f"\ud800{MARK}",
    MARK * 20_000,
)
SHOWN_UNSEEN: Final = frozenset(map(chr, [*range(32), *range(127, 160), 0x2028, 0x2029, 0x202E]))


class Kind(StrEnum):
    """Handling of text by a field.

    Attributes:
        REFUSED: A name, id or address that accepts only its own characters.
        CLEANED: Text for people, reduced to one line without control characters, with a limit.
        LINES: The same with several lines.
        OWN: Text of the operator, or of the coordinator in a table that agents cannot read.
    """

    REFUSED = "refused"
    CLEANED = "cleaned"
    LINES = "lines"
    OWN = "own"


KINDS: Final[Mapping[str, Kind]] = {
    field: kind
    for kind, fields in {
        Kind.REFUSED: """
            CanaryRequest.host CanaryRequest.path CanarySignature.name
            ClockReading.boot_id Job.shared_boot_id Presence.allowed_networks
            Claim.address Claim.agent_id Claim.job_id Control.run_id Job.may_ignore
            Distribution.name Distribution.unit
            Endpoint.address Endpoint.agent_id EngineReport.engine EngineState.name Job.run_id
            JobReport.agent_id JobReport.job_id JobReport.run_id ConnectionsOptions.body_mix
            ConnectionsOptions.server_name ConnectionsOptions.tls_cipher HttpOptions.body_mix
            HttpOptions.server_name HttpOptions.tls_cipher Measure.name Measure.unit
            PeerSeconds.address PeerSeconds.packed Presence.address Presence.agent_id Probe.device
            ServerTest.agent_id ServerTest.client_address
            Traffic.congestion Traffic.engine Tunnel.client_address Tunnel.inner_client_address
            Tunnel.inner_server_address Tunnel.opened_by RunHeader.run_id
        """,
        Kind.CLEANED: """
            Canary.consent CanaryRequest.body CanaryRequest.user_agent CanarySignature.rule
            BurstEnd.reason Claim.cookie ClockReading.reference Control.cancel_reason
            Control.cancelled_by
            EngineReport.argv EngineReport.cookie EngineReport.error
            EngineReport.receiver_congestion EngineReport.sender_congestion EngineReport.version
            EngineState.new_options EngineState.problem EngineState.tls EngineState.version
            JobReport.reason HostInfo.cpu_flags
            HostInfo.cpu_model HostInfo.engine_build HostInfo.hypervisor HostInfo.kernel_build
            HostInfo.nic_driver HostInfo.nic_driver_version HostInfo.nic_firmware HostInfo.offloads
            HostInfo.sysctls Presence.broadside_version
            Presence.engine_version Presence.kernel Presence.nic Presence.problem Presence.vm_size
            Presence.warnings
            Traffic.options
        """,
        Kind.LINES: "EngineReport.files",
        Kind.OWN: """
            HostCheck.detail HostCheck.fix HostCheck.name Judging.by
            RunHeader.created_by RunHeader.device RunHeader.labels RunHeader.scenario
            RunOutcome.bottleneck RunOutcome.next_step RunOutcome.reason
            RunOutcome.target_layer RunOutcome.verdict
        """,
    }.items()
    for field in fields.split()
}


def models() -> list[type[Message]]:
    """Return all messages and rows that ``exchange`` defines."""
    for module in pkgutil.walk_packages(exchange.__path__, "broadside.exchange."):
        if not module.name.startswith("broadside.exchange.azure"):
            importlib.import_module(module.name)
    by_name: dict[str, type[Message]] = {}
    todo = [Message]
    while todo:
        for model in todo.pop().__subclasses__():
            if model.__module__.startswith("broadside.exchange."):
                by_name[f"{model.__module__}.{model.__name__}"] = model
            todo.append(model)
    return [model for _, model in sorted(by_name.items())]


def text_fields() -> dict[str, Any]:
    """Return the types of all free text fields by ``Model.field``."""
    return {
        f"{model.__name__}.{name}": Annotated.__class_getitem__((info.annotation, *info.metadata))  # type: ignore[attr-defined]
        if info.metadata
        else info.annotation
        for model in models()
        for name, info in model.model_fields.items()
        if _takes_text(info.annotation)
    }


def _takes_text(kind: Any) -> bool:
    if get_origin(kind) is Literal or kind in (None, type(None), Ellipsis):
        return False
    if get_origin(kind) is Annotated:
        return _takes_text(get_args(kind)[0])
    if get_args(kind) or isinstance(kind, types.UnionType):
        return any(_takes_text(part) for part in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, str) and not issubclass(kind, Enum)


def taken(kind: Any, text: str) -> list[str]:
    """Return the values to use for a field of that type, in all accepted forms."""
    adapter = TypeAdapter(kind)
    stored: list[str] = []
    for given in (text, [text], {text: text}, {text: 1}, {"a": text}):
        try:
            value = adapter.validate_python(given)
        except (ValidationError, UnicodeError):
            continue
        stored += _texts(value)
    return stored


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, stored in value.items():
                yield from (*_texts(key), *_texts(stored))
        case list() | tuple():
            for stored in value:
                yield from _texts(stored)


def check_kind(field: str, kind: Any, text: str) -> str:
    """Return how a field handled the text, or raise AssertionError if its kind is wrong."""
    stored = taken(kind, text)
    match KINDS[field]:
        case Kind.REFUSED:
            assert not stored, f"{field} holds {stored[0][:80]!r}"
        case Kind.CLEANED:
            assert not any(SHOWN_UNSEEN & set(item) for item in stored), f"{field}: {stored!r:.200}"
            assert all(len(item) <= TEXT_MAX_CHARS for item in stored), f"{field}: unbounded"
        case Kind.LINES:
            unseen = SHOWN_UNSEEN - {"\n", "\t"}
            assert not any(unseen & set(item) for item in stored), f"{field}: {stored!r:.200}"
        case Kind.OWN:
            pass
    return KINDS[field]


# Writers -----------------------------------------------------------------------------------------

# Values that reach writers: fields of a job, a request and a tunnel.
PLACES: Final = (
    "run_id",
    "endpoint.address",
    "endpoint.agent_id",
    "traffic.engine",
    "traffic.congestion",
    "traffic.options.key",
    "traffic.options.value",
    "bind",
    "address",
    "certificate",
    "tunnel.client_address",
    "tunnel.inner_server_address",
    "tunnel.opened_by",
    "nic",
    "mark",
)
_FOLDER: Final = "/tmp/broadside-c1@x"  # noqa: S108 - a name, nothing is made


def _tools(engine: str) -> dict[str, Tool]:
    programs = [*engines()[engine].client_programs, *engines()[engine].server_programs]
    return {program.name: Tool(argv=(program.name,), version="3.18") for program in programs}


def _job(engine: str) -> Job:
    return Job(
        run_id="run-1",
        burst_index=0,
        pair_index=0,
        endpoint=Endpoint(agent_id="s1", address="10.2.1.1", port=5201),
        traffic=traffic_of(engine=engine),
        planned_start_at=datetime(2026, 11, 22, tzinfo=UTC),
        duration_s=10,
    )


def written(engine: str, place: str, text: str) -> str:
    """Return the output of an engine's writers for an unvalidated value, or "" if refused."""
    head, _, field = place.partition(".")
    if head in ("tunnel", "nic", "mark"):
        return _tunnel_commands(**{field or head: text})
    local = {"address": "10.2.1.1", "certificate": f"{_FOLDER}/certificate.pem"}
    job, bind = _job(engine), None
    if place == "bind":
        bind = text
    elif place in local:
        local[place] = text
    elif place == "run_id":
        job = job.model_copy(update={"run_id": text})
    else:
        options = {"options.key": {text: 1}, "options.value": {"file_bytes": text}}
        change = {"options": options[field]} if field in options else {field: text}
        job = job.model_copy(update={head: getattr(job, head).model_copy(update=change)})
    bodies = f"{_FOLDER}/libbodies.so"
    client = ClientRequest(job=job, tools=_tools(engine), folder=_FOLDER, bind=bind, bodies=bodies)
    file = local["certificate"]
    server = ServerRequest(
        port=5201,
        address=local["address"],
        tools=_tools(engine),
        folder=_FOLDER,
        duration_max_s=60,
        certificate=Certificate(certificate=file, key=file),
        bodies=bodies,
    )
    made = engines()[engine]
    return _text_of(lambda: made.client(client)) + _text_of(lambda: made.server(server))


def _text_of(make: Any) -> str:
    try:
        launch: Launch = make()
    except Unsupported:
        return ""
    parts = [
        part for process in launch.processes for part in (*process.argv, *process.env.values())
    ]
    return "\n".join([*parts, *(file.text for file in launch.files if file.size_bytes is None)])


def _tunnel_commands(**changes: str) -> str:
    vxlan = traffic_of(encapsulation="vxlan")
    job = _job("iperf3").model_copy(update={"traffic": vxlan})
    tunnel: Tunnel = tunnel_of(job, client_address="10.1.1.1")
    local = {name: changes.pop(name) for name in ("nic", "mark") if name in changes}
    requested = tunnel.model_copy(update=changes)
    try:
        return device_commands(
            requested,
            DeviceSettings(
                local="10.2.1.1",
                remote=requested.client_address,
                inner=requested.inner_server_address,
                nic=local.get("nic", "eth0"),
                mark=local.get("mark", "broadside:s1/server"),
            ),
            1500,
        )
    except TunnelFailed:
        return ""
