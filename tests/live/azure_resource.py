"""Resource Manager stub with a single resource."""

import json
from typing import Any, Final

from tests.live.http_service import Answer, Asked

TOKEN: Final = "t"  # noqa: S105 - a test's
_AT_ONCE: Final = {"Retry-After": "0"}


class ResourceManager:
    """Serve one resource through ``answer``. The test sets ``url`` after the server has started.

    Attributes:
        polls_left: Polls until the current change is complete.
        puts: Accepted PUT bodies.
        observed: Values of the metric, one per minute.
        polls_per_change: Polls that each change takes.
        throttled: Number of next requests that receive status 429.
        broken: Number of next requests that receive status 503.
        refuses_puts: Number of next PUTs that receive status 403.
        rivals: Changes by other clients, one applied before each of our PUTs.
        fails: Changes end in state ``Failed``.
        keeps_old: A PUT is accepted but changes nothing.
    """

    def __init__(self, **properties: Any) -> None:
        self.url = ""
        self.properties = properties
        self.state = "Succeeded"
        self.polls_left = 0
        self.puts: list[dict[str, Any]] = []
        self.observed: list[float | None] = []
        # Settings for injected faults.
        self.put_status = 202
        self.polls_per_change = 2
        self.throttled = 0
        self.broken = 0
        self.refuses_puts = 0
        self.rivals: list[dict[str, Any]] = []
        self.hides_operations = False
        self.fails = False
        self.keeps_old = False
        self._version = 1
        self._wanted: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        properties = {**self.properties, "provisioningState": self.state}
        place = {"name": "fw", "location": "eastus", "zones": ["1"]}
        return {**place, "etag": f'W/"{self._version}"', "properties": properties}

    def poll(self) -> None:
        """Advance the current operation by one poll."""
        self.polls_left -= 1
        if self.state == "Updating" and self.polls_left <= 0:
            self.state, self._version = "Failed" if self.fails else "Succeeded", self._version + 1
            if not self.fails and not self.keeps_old:
                self.properties |= self._wanted

    def answer(self, request: Asked) -> Answer:
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return Answer(status=401, body={"error": {"message": "no token"}})
        if self.throttled:
            self.throttled -= 1
            fields = {"error": {"message": "slow down"}}
            return Answer(status=429, body=fields, headers=_AT_ONCE)
        if self.broken:
            self.broken -= 1
            return Answer(status=503, body={}, headers=_AT_ONCE)
        if request.method == "PUT":
            return self._put(json.loads(request.body), request.headers["If-Match"])
        if "Microsoft.Insights" in request.path:
            data = [
                {"timeStamp": f"2026-11-21T12:0{at}:00Z", "minimum": value}
                for at, value in enumerate(self.observed)
            ]
            return Answer(body={"value": [{"timeseries": [{"data": data}]}]})
        self.poll()
        if "/operations/" not in request.path:
            return Answer(body=self.body(), headers={"ETag": self.body()["etag"]})
        if self.hides_operations:
            return Answer(status=403, body={"error": {"code": "AuthorizationFailed"}})
        status = "InProgress" if self.state == "Updating" else self.state
        progress = {"status": status, "error": {"message": "no room"}}
        return Answer(body=progress, headers=_AT_ONCE)

    def _put(self, document: dict[str, Any], etag: str) -> Answer:
        if self.rivals:
            self.properties |= self.rivals.pop()
            self._version += 1
        if etag != self.body()["etag"]:
            return Answer(status=412, body={"error": {"code": "PreconditionFailed"}})
        if self.refuses_puts:
            self.refuses_puts -= 1
            return Answer(status=403, body={"error": {"message": "AuthorizationFailed"}})
        if self.state == "Updating":
            return Answer(status=409, body={"error": {"message": "busy"}}, headers=_AT_ONCE)
        self.puts.append(document)
        self._wanted = document["properties"]
        self.state, self.polls_left = "Updating", self.polls_per_change
        self._version += 1
        operation = f"{self.url}/subscriptions/0/operations/1?api-version=1"
        headers = {"Azure-AsyncOperation": operation, **_AT_ONCE}
        return Answer(status=self.put_status, body=self.body(), headers=headers)
