"""Jobs and requests to use in engine tests."""

from datetime import UTC, datetime
from typing import Any

from broadside.exchange.engines.port import ClientRequest, ServerRequest, Tool
from broadside.exchange.messages import Endpoint, Job, Traffic

NAMES = ("connections", "iperf3", "vegeta", "nginx", "lftp", "vsftpd")
TOOLS = {name: Tool(argv=(f"/bin/{name}",), version="3.18") for name in NAMES}
BODIES = "/lib/libbodies.so"
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def job(traffic: Traffic, *, duration_s: int = 10, **endpoint: Any) -> Job:
    endpoint_fields = {"agent_id": "s1", "address": "10.2.0.4", "port": 8080} | endpoint
    return Job(
        run_id="r1",
        burst_index=0,
        pair_index=0,
        endpoint=Endpoint.model_validate(endpoint_fields),
        traffic=traffic,
        planned_start_at=T0,
        duration_s=duration_s,
    )


def client_ask(request: Job, bind: str | None = "10.1.0.4") -> ClientRequest:
    return ClientRequest(job=request, tools=TOOLS, folder="/work/x", bind=bind, bodies=BODIES)


def server_ask(**changes: Any) -> ServerRequest:
    fields: dict[str, Any] = {"port": 8080, "address": "10.2.0.4", "tools": TOOLS}
    fields |= {"folder": "/work/x", "duration_max_s": 60.5, "bodies": BODIES}
    return ServerRequest(**(fields | changes))
