"""Puts an Azure Firewall's policy into a mode: ``python -m coordinator.firewall_policy``.

What a switch of docs/studies.md runs on Azure, where the coordinator's machine has no ``az``::

    python -m coordinator.firewall_policy --policy ID --idps Deny
    python -m coordinator.firewall_policy --policy ID --threat-intelligence Alert

The Resource Manager's PATCH of a policy changes tags alone, so the policy is read, its mode
changed, and the whole put back under its ETag. The command ends when the policy has come to rest in
that mode: exit code 0, else 1 and one line. Its identity needs to read and write this one policy.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from coordinator.settings import CoordinatorSettings

API_VERSION: Final = "2025-05-01"
MODES: Final = ("Off", "Alert", "Deny")
PATIENCE_S: Final = 1500.0  # a policy with a firewall on it takes some ten minutes
POLL_S: Final = 10.0  # when the service does not say
TRIES_COUNT: Final = 5  # of reading and writing, while somebody else changes the policy too

_ID: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Network/firewallPolicies/[^/]+",
    re.I,
)
_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_AT_WORK: Final = frozenset({"Updating", "Creating", "Deleting"})


class PolicyError(Exception):
    """The policy could not be put into the mode; the message is one line for a person."""


class FirewallPolicy:
    """One policy at the Resource Manager; ``token`` gives a bearer token when asked."""

    def __init__(
        self,
        resource_id: str,
        *,
        token: Callable[[], str],
        endpoint: str = "https://management.azure.com",
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises :class:`PolicyError` for what is no policy's id, or no safe endpoint."""
        if _ID.fullmatch(resource_id) is None:
            raise PolicyError(f"policy {resource_id!r}: not a firewall policy's resource id")
        parts = urlsplit(endpoint)
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise PolicyError(f"endpoint {endpoint!r}: a token travels over https only")
        self._endpoint = endpoint.rstrip("/")
        self._url = f"{self._endpoint}{resource_id}?api-version={API_VERSION}"
        self._token = token
        self._end_s = time.monotonic() + patience_s
        self._sleep = sleep
        self._client = httpx.Client(timeout=60)

    def close(self) -> None:
        self._client.close()

    def set(self, modes: Mapping[str, str]) -> None:
        """Have ``idps`` or ``threat_intelligence`` in a mode. Raises :class:`PolicyError`."""
        for _ in range(TRIES_COUNT):
            body = self._read_at_rest()
            wanted = with_modes(body, modes)
            if wanted == body:
                return
            headers = {"If-Match": body["etag"]} if body.get("etag") else {}
            answer = self._ask("PUT", self._url, headers, wanted, refused=(412,))
            if answer.status_code != 412:
                self._wait(answer)
                break
        else:
            raise PolicyError("the policy is changed all the time by somebody else; try later")
        found = self._read_at_rest()
        if with_modes(found, modes) != found:
            state = found["properties"].get("provisioningState", "unknown")
            raise PolicyError(f"the policy did not take the mode ({state}); see its activity log")

    def _read_at_rest(self) -> dict[str, Any]:
        """The policy once nobody is changing it."""
        while True:
            body: dict[str, Any] = self._ask("GET", self._url).json()
            if body["properties"].get("provisioningState") not in _AT_WORK:
                return body
            self._pause(POLL_S, "the policy is still being changed")

    def _wait(self, accepted: httpx.Response) -> None:
        """Follow a long operation to its end, where this identity may."""
        url = accepted.headers.get("Azure-AsyncOperation")
        answer = accepted
        while url is not None:
            if urlsplit(url)[:2] != urlsplit(self._endpoint)[:2]:
                raise PolicyError(f"the operation is at {url}: not at {self._endpoint}")
            self._pause(_retry_after_s(answer), "the change is not through")
            answer = self._ask("GET", url, refused=(403, 404))
            if not answer.is_success:
                return  # a right on the policy is none on the operation: the policy itself tells
            told = answer.json() if answer.content else {}
            state = told.get("status", "Succeeded" if answer.status_code != 202 else "InProgress")
            if state in ("Failed", "Canceled"):
                raise PolicyError(f"the change {state.lower()}: {_message(told)}")
            if state == "Succeeded":
                return

    def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        refused: tuple[int, ...] = (),
    ) -> httpx.Response:
        """One request, again while the service is throttling, busy or away. A PUT may come twice.

        ``refused`` are statuses that the caller understands.
        """
        while True:
            signed = {"Authorization": f"Bearer {self._token()}", **(headers or {})}
            try:
                answer = self._client.request(method, url, headers=signed, json=body)
            except httpx.TransportError as error:
                self._pause(POLL_S, str(error) or type(error).__name__)
                continue
            if answer.is_success or answer.status_code in refused:
                return answer
            said = f"{method}: {answer.status_code} {_message(_json(answer))}"
            if answer.status_code not in _RETRIED:
                raise PolicyError(said)
            self._pause(_retry_after_s(answer), said)

    def _pause(self, pause_s: float, why: str) -> None:
        if time.monotonic() + pause_s > self._end_s:
            raise PolicyError(f"no end in time: {why}")
        self._sleep(pause_s)


def with_modes(body: Mapping[str, Any], modes: Mapping[str, str]) -> dict[str, Any]:
    """A policy in other modes, all else as it was."""
    properties = dict(body["properties"])
    if (mode := modes.get("idps")) is not None:
        properties["intrusionDetection"] = {
            **(properties.get("intrusionDetection") or {}),
            "mode": mode,
        }
    if (mode := modes.get("threat_intelligence")) is not None:
        properties["threatIntelMode"] = mode
    return {**body, "properties": properties}


def arguments(argv: Sequence[str] | None = None) -> tuple[str, dict[str, str]]:
    """The policy's id and the modes, of the command line."""
    parser = argparse.ArgumentParser(prog="firewall_policy", description=__doc__)
    parser.add_argument("--policy", required=True, metavar="ID", help="its resource id")
    parser.add_argument("--idps", choices=MODES, help="intrusion detection: a Premium policy's")
    parser.add_argument("--threat-intelligence", choices=MODES)
    given = vars(parser.parse_args(argv))
    resource_id = given.pop("policy")
    modes = {name: mode for name, mode in given.items() if mode is not None}
    if not modes:
        parser.error("give --idps or --threat-intelligence")
    return resource_id, modes


def main(argv: Sequence[str] | None = None) -> int:
    resource_id, modes = arguments(argv)
    settings = CoordinatorSettings()
    try:
        endpoint = settings.azure_monitor_endpoint
        token = _token_source(settings)
        policy = FirewallPolicy(resource_id, token=token, endpoint=endpoint)
        try:
            policy.set(modes)
        finally:
            policy.close()
    except PolicyError as error:
        sys.stderr.write(f"firewall_policy: {error}\n")
        return 1
    return 0


def _token_source(settings: CoordinatorSettings) -> Callable[[], str]:
    """The given token, or the Azure identity's: on the range, the machine's managed one."""
    if (given := settings.azure_monitor_token) is not None:
        return given.get_secret_value
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError as error:
        raise PolicyError(f"{error.name} is missing; pip install 'broadside[azure]'") from error
    credential = DefaultAzureCredential(
        managed_identity_client_id=settings.managed_identity_client_id
    )

    def token() -> str:
        try:
            scope = f"{settings.azure_monitor_endpoint.rstrip('/')}/.default"
            return credential.get_token(scope).token
        except ClientAuthenticationError as error:
            said = " ".join(str(error).split())[:200]
            raise PolicyError(f"no Azure identity ({said})") from error

    return token


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", POLL_S)))
    except ValueError:
        return POLL_S


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return {}


def _message(told: Any) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return "no reason given"
    return " ".join(str(error.get("message") or error.get("code")).split())


if __name__ == "__main__":
    sys.exit(main())
