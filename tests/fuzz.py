"""API fuzzer that follows and violates the OpenAPI document.

Use ``python -m tests.fuzz`` to run it.

The application runs in this process with sign-in on, on an embedded fabric with a few runs. An
answer must be documented and match its schema, and must never be a 500. Half of the requests follow
the document, and the others violate it in one place. Every second path with a run uses a real one,
so that successful answers will be checked too.
"""

import argparse
import asyncio
import contextlib
import copy
import gc
import json
import os
import resource
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import hypothesis
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Err, Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.api.examples import REQUESTS
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.views.charts import catalogue
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.outage_log import utc_now
from tests.fuzz_store import OPEN, OVER, STUDY, store
from tests.unit.coordinator.presences import fleet

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Interval of the checks of the application's event loop.
LOOK_S: Final = 0.005
CONFIG: Final = Path(__file__).parents[1] / "schemathesis.toml"
_EXAMPLE_RUN: Final = REQUESTS["POST", "/v1/comparisons"]["a"]["run_ids"][0]
# Path values that exist.
_KNOWN: Final[dict[str, st.SearchStrategy[str]]] = {
    "run_id": st.sampled_from([OVER, OVER, OPEN]),
    "pair": st.sampled_from(["pair-001", "2", "99"]),
    "burst_index": st.sampled_from(["0", "1", "2"]),
    "study_id": st.just(STUDY),
    "sequence_number": st.just("1"),
    "name": st.sampled_from(["nightly", *(entry.name for entry in catalogue())]),
}


class _TimeIsUp(Exception):
    """Time limit of one operation."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of requests and answers, with the failures.

    Attributes:
        answered: Number of 2xx answers by operation.
        failures: One failure for each kind and operation.
        lag_s: Longest lag of the application's event loop.
    """

    requests_count: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    sent: set[str] = field(default_factory=set)
    answered: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    lag_s: float = 0.0
    lag_at: str = ""


class Watched:
    """Application wrapper that records the longest lag of the event loop during requests."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.longest_s = 0.0
        # Method and path of the request.
        self.longest_at = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Start-up has no limit.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        requested = f"{scope['method']} {scope['path']}"[:200]
        watching = asyncio.create_task(self._watch(ascii(requested)))
        # The objects of this process belong to the request generator. Their collection takes half a
        # second, which is not a lag of the application.
        gc.disable()
        try:
            await self._app(scope, receive, send)
        finally:
            gc.enable()
            watching.cancel()

    async def _watch(self, sent: str) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            lag_s = time.monotonic() - began_s - LOOK_S
            if lag_s > self.longest_s:
                self.longest_s, self.longest_at = lag_s, sent


@contextlib.contextmanager
def application(folder: Path) -> Iterator[tuple[FastAPI, Fabric, dict[str, str]]]:
    """Yield an application over stored runs, with tokens of a viewer and an operator."""
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    tokens = Tokens(fabric.private)

    async def prepare() -> dict[str, str]:
        await store(fabric)
        for item in fleet(2, beat_at=utc_now()):
            await fabric.records.fleet.beat(item)
        return {
            access.value: await tokens.add(access.value, access, by="fuzz", now=utc_now())
            for access in (Access.VIEWER, Access.OPERATOR)
        }

    made = asyncio.run(prepare())
    guard = AuthConfig(
        sign_in=SignIn(tokens, None), writes_per_minute=10**9, request_max_bytes=10**6
    )
    yield create_app(Coordinator(fabric), tick_s=None, guard=guard), fabric, made
    asyncio.run(fabric.close())


def fuzz(requests_count: int, *, seconds_max: float, seed: int, folder: Path) -> Tally:
    """Send the given number of requests over all operations, or fewer if the time runs out."""
    tally = Tally()
    end_s = time.monotonic() + seconds_max
    with application(folder) as (app, fabric, tokens):
        document = copy.deepcopy(app.openapi())
        # The fuzzer chooses the caller itself.
        document["components"].pop("securitySchemes")
        document.pop("security")
        config = SchemathesisConfig.from_path(CONFIG)
        schema = schemathesis.openapi.from_dict(document, config=config)
        watched = Watched(app)
        schema.app = watched
        result = list(schema.get_all_operations())
        assert not [item for item in result if isinstance(item, Err)]
        operations = [item.ok() for item in result if isinstance(item, Ok)]
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        rounds = [(operation, mode) for operation in operations for mode in modes]
        while rounds and tally.requests_count < requests_count and time.monotonic() < end_s:
            share = -(-(requests_count - tally.requests_count) // len(rounds))
            fruitful = []
            for place, (operation, mode) in enumerate(rounds):
                left_s = (end_s - time.monotonic()) / (len(rounds) - place)
                before = tally.requests_count
                _ask(operation, mode, share, time.monotonic() + left_s, seed, tokens, tally)
                asyncio.run(store(fabric))
                if tally.requests_count - before >= share:
                    # This operation can use more requests.
                    fruitful.append((operation, mode))
            rounds = fruitful
            seed += 1
        tally.lag_s, tally.lag_at = watched.longest_s, watched.longest_at
    return tally


def _ask(
    operation: Any,
    mode: GenerationMode,
    count: int,
    end_s: float,
    seed: int,
    tokens: dict[str, str],
    tally: Tally,
) -> None:
    """Send requests to one operation in one mode."""
    name = f"{operation.method.upper()} {operation.path}"

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        checks = [*CHECKS, positive_data_acceptance, negative_data_rejection]
        for place, values in _KNOWN.items():
            if place in case.path_parameters and data.draw(st.booleans()):
                case.path_parameters[place] = data.draw(values)
                # The replaced value can make an invalid request valid again.
                checks = CHECKS
        example = REQUESTS.get((operation.method.upper(), operation.path))
        if example is not None and mode is GenerationMode.POSITIVE and data.draw(st.booleans()):
            case.body, case.media_type = _pointed(example), "application/json"
        if operation.path.endswith("/events") and case.path_parameters["run_id"] == OPEN:
            # The stream of an open run does not end.
            case.path_parameters["run_id"] = OVER
        user = data.draw(st.sampled_from(["operator"] * 8 + ["viewer", "nobody"]))
        token = tokens.get(user)
        headers = {"Authorization": f"Bearer {token}"} if token else {"Authorization": ""}
        # This check follows all draws, because they must not depend on time.
        if time.monotonic() > end_s:
            raise _TimeIsUp
        tally.requests_count += 1
        tally.sent.add(name)
        try:
            response = case.call(headers=headers)
        # A server would answer 500, because no handler caught the exception.
        except Exception as error:
            tally.failures.setdefault(f"{name}: {type(error).__name__}", _error_text(error))
            return
        tally.statuses[response.status_code] += 1
        if response.status_code < 300:
            tally.answered[name] += 1
        try:
            case.validate_response(response, checks=checks, headers=headers)
        except Exception as error:
            for failure in getattr(error, "exceptions", [error]):
                title = getattr(failure, "title", type(failure).__name__)
                kind = f"{name}: {response.status_code}: {title}"
                tally.failures.setdefault(kind, _error_text(error))

    # ``Unsatisfiable`` means that the operation cannot be violated.
    with contextlib.suppress(_TimeIsUp, Unsatisfiable):
        ask()


def _pointed(example: Any) -> Any:
    """Return the example with the id of an existing run."""
    text = json.dumps(example).replace(_EXAMPLE_RUN, OVER)
    return json.loads(text.replace('"nightly"', f'"night-{secrets.token_hex(4)}"'))


def _error_text(error: Exception) -> str:
    notes = "".join(getattr(error, "__notes__", ()))
    return f"{error}\n{notes}"[:3000]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="stop asking after so long")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")  # noqa: T201
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(
            arguments.requests,
            seconds_max=arguments.seconds,
            seed=arguments.seed,
            folder=Path(folder),
        )
    for kind, text in tally.failures.items():
        print(f"--- {kind}\n{text}\n")  # noqa: T201
    for name in sorted(tally.sent - tally.answered.keys()):
        print(f"never answered with 2xx: {name}")  # noqa: T201
    statuses = ", ".join(f"{count} x {status}" for status, count in sorted(tally.statuses.items()))
    print(  # noqa: T201
        f"{tally.requests_count} requests in {time.monotonic() - began_s:.0f} s, "
        f"{len(tally.failures)} kinds of failure; {statuses}"
    )
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(  # noqa: T201
        f"longest loop lag {tally.lag_s * 1000:.0f} ms ({tally.lag_at}); "
        f"peak memory, with the client: {memory_bytes / 1e6:.0f} MB"
    )
    sys.exit(bool(tally.failures) or tally.requests_count < arguments.requests)


if __name__ == "__main__":
    main()
