"""Check docker-compose.yml without Docker.

Run it with ``python -m tests.deploy_check.compose``. The exit code is 1 if there are errors.

We use a parser for the Compose Specification to check keys and values. It does not support YAML
merges and does not check references to other names, so both are done in here. The file is checked
for each profile, because the profile sets the environment of the fleet.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from compose_spec import PyCompose

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "docker-compose.yml"
PROFILES: Final = ("embedded", "emulators")
_VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")
# The source of a volume is a path if it starts with one of these.
_HOST_PATH: Final = (".", "/")


def faults(text: str, profile: str) -> Iterator[str]:
    """Yield the errors of a compose file, using one line for each.

    Args:
        text: Text of the file.
        profile: Profile to use.
    """
    try:
        compose = read_compose(text, profile)
    except (yaml.YAMLError, LookupError) as error:
        yield " ".join(str(error).split())
        return
    try:
        PyCompose.from_yaml(yaml.safe_dump(compose, sort_keys=False))
    except ValueError as error:
        yield f"not of the Compose Specification: {error}"
        return
    for name, service in compose["services"].items():
        for fault in _service_faults(service, compose):
            yield f"services.{name}: {fault}"


def read_compose(text: str, profile: str) -> Any:
    """Return the document in a compose file with all merges and variables resolved.

    Args:
        text: Text of the file.
        profile: Profile to use.

    Raises:
        yaml.YAMLError: The text is not YAML.
        LookupError: There is a variable without a default.
    """
    return _interpolated(yaml.safe_load(text), {"COMPOSE_PROFILES": profile})


def _service_faults(service: dict[str, Any], compose: dict[str, Any]) -> Iterator[str]:
    for kind, top in (("networks", "networks"), ("depends_on", "services")):
        for name in service.get(kind, ()):
            if name not in compose.get(top, {}):
                yield f"{kind}: {name} is not among the {top}"
    yield from _volume_faults(service, compose)
    paths = [service[key] for key in ("env_file",) if key in service]
    if "build" in service:
        paths.append(f"{service['build']['context']}/{service['build']['dockerfile']}")
    for path in paths:
        if not (ROOT / path).is_file():
            yield f"{path} does not exist"
    for port in service.get("ports", ()):
        if not port.startswith("127.0.0.1:"):
            yield f"ports: {port} is open to the network; begin it with 127.0.0.1:"
    if not ({"build", "image"} & service.keys()):
        yield "neither image nor build"


def _volume_faults(service: dict[str, Any], compose: dict[str, Any]) -> Iterator[str]:
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        if source.startswith(_HOST_PATH):
            if not (ROOT / source).exists():
                yield f"volumes: {source} does not exist"
        elif source not in compose.get("volumes", {}):
            yield f"volumes: {source} is not among the volumes"


def _interpolated(value: Any, given: dict[str, str]) -> Any:
    """Resolve ``${NAME:-default}`` and ``$$`` as in Compose.

    Any other ``$`` raises ``LookupError``.
    """
    if isinstance(value, dict):
        return {key: _interpolated(inner, given) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, given) for inner in value]
    if not isinstance(value, str):
        return value
    parts = [_VARIABLE.sub(lambda m: given.get(m[1], m[2]), part) for part in value.split("$$")]
    if any("$" in part for part in parts):
        raise LookupError(f"{value!r}: a variable without a default; write ${{NAME:-default}}")
    return "$".join(parts)


if __name__ == "__main__":
    errors = [
        f"{COMPOSE.name} ({profile}): {fault}"
        for profile in PROFILES
        for fault in faults(COMPOSE.read_text(encoding="utf-8"), profile)
    ]
    sys.exit("\n".join(errors) or None)
