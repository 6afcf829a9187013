"""Checks of one installed service, in a process that runs as the service.

``python -m broadside.coordinator.cli.service_doctor coordinator`` prints the checks as a JSON list.
``broadside doctor`` starts it with the user, the environment and the sandbox of the unit, so that
a check fails where the service would fail. With ``--running``, the port may be in use.
"""

import asyncio
import contextlib
import errno
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_settings import BaseSettings

from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.cli.doctor import (
    agent_checks,
    agent_fabric_checks,
    fabric_checks,
    require_clock,
    telemetry_checks,
)
from broadside.coordinator.cli.telemetry_checks import failed
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.checks import HostCheck
from broadside.exchange.fabric import FabricSettings

# Settings that name files which the service writes itself.
_WRITTEN_FILES = ("credential_file",)


def user_name() -> str:
    """Return the name of the user of this process, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def path_checks(settings: Iterable[BaseSettings]) -> Iterator[HostCheck]:
    """Yield a check of each file and folder in the settings, as this user can access it.

    Args:
        settings: Settings of the service.
    """
    for group in settings:
        for field in type(group).model_fields:
            value = getattr(group, field)
            if not isinstance(value, Path) or (
                isinstance(group, FabricSettings)
                and field == "data_dir"
                and group.fabric != "embedded"
            ):
                continue
            name = f"BROADSIDE_{field.upper()}"
            if field.endswith("_dir"):
                yield folder_check(name, value)
            elif field not in _WRITTEN_FILES:
                yield file_check(name, value)


def file_check(name: str, path: Path) -> HostCheck:
    """Check that this user can read a file.

    Args:
        name: Setting with the path.
        path: File that the service reads.

    Returns:
        The check, with a fix if it fails.
    """
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return HostCheck(
            name=name,
            ok=False,
            detail=f"{user_name()} cannot read {path}: {error.strerror}",
            fix=f"correct the path, or let {user_name()} read it: `chgrp {_group()} {path}` and "
            f"`chmod g+r {path}`",
        )
    return HostCheck(name=name, ok=True, detail=f"{user_name()} can read {path}")


def folder_check(name: str, path: Path) -> HostCheck:
    """Check that this user can write to a folder, or create it.

    Args:
        name: Setting with the path.
        path: Folder that the service writes to.

    Returns:
        The check, with a fix if it fails.
    """
    # The service creates missing folders.
    existing = next((one for one in (path, *path.absolute().parents) if one.exists()), path)
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".doctor-"):
            pass
    except OSError as error:
        return HostCheck(
            name=name,
            ok=False,
            detail=f"{user_name()} cannot write to {existing}: {error.strerror}",
            fix=f"correct the path, or give it to the service: `chown {user_name()} {existing}`",
        )
    return HostCheck(name=name, ok=True, detail=f"{user_name()} can write to {path}")


def port_check(host: str, port: int, *, is_running: bool) -> HostCheck:
    """Check that the service can listen on its port.

    Args:
        host: Address to listen on.
        port: TCP port.
        is_running: True if the service is running, so that it uses the port itself.

    Returns:
        The check, with a fix if it fails.
    """
    place = f"{port}/tcp on {host}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        if is_running and error.errno == errno.EADDRINUSE:
            return HostCheck(name="port", ok=True, detail=f"{place} is used by the running service")
        return HostCheck(
            name="port",
            ok=False,
            detail=f"{user_name()} cannot listen on {place}: {error.strerror}",
            fix="stop the program that uses it (`ss -ltnp`), or set BROADSIDE_PORT and "
            "BROADSIDE_HOST",
        )
    return HostCheck(name="port", ok=True, detail=f"{place} is free")


def listener_check(settings: CoordinatorSettings, security: SignInSettings) -> HostCheck:
    """Check the combination of address, sign-in and TLS that the service refuses otherwise.

    Args:
        settings: Settings with the address of the service.
        security: Settings of sign-in and TLS.

    Returns:
        The check, with a fix if it fails.
    """
    from broadside.exchange.http.bounded import is_loopback

    detail = f"sign-in is {security.sign_in}, on {settings.host}"
    if security.sign_in == "off" and not is_loopback(settings.host):
        return HostCheck(
            name="sign-in",
            ok=False,
            detail=f"{detail}: without sign-in the API listens on loopback only",
            fix="set BROADSIDE_SIGN_IN=on, or BROADSIDE_HOST=127.0.0.1",
        )
    if (security.tls_certificate_file is None) != (security.tls_key_file is None):
        return HostCheck(
            name="sign-in",
            ok=False,
            detail=f"{detail}: only one of certificate and key is set",
            fix="set both BROADSIDE_TLS_CERTIFICATE_FILE and BROADSIDE_TLS_KEY_FILE",
        )
    return HostCheck(name="sign-in", ok=True, detail=detail)


async def coordinator_service_checks(*, is_running: bool) -> list[HostCheck]:
    """Return the checks of a coordinator that starts in this environment.

    Args:
        is_running: True if the service is running.
    """
    try:
        settings, security, fabric = CoordinatorSettings(), SignInSettings(), FabricSettings()
    except ValidationError as error:
        return [failed("settings", error)]
    checks = [
        HostCheck(name="user", ok=True, detail=f"the checks run as {user_name()}"),
        listener_check(settings, security),
        port_check(settings.host, settings.port, is_running=is_running),
        *path_checks((settings, security, fabric)),
    ]
    (on_fabric, _), on_telemetry = await asyncio.gather(fabric_checks(), telemetry_checks())
    clocks = [check for check in agent_checks([]) if check.name == "clock"]
    return [*checks, *clocks, *on_fabric, *on_telemetry]


async def agent_service_checks() -> list[HostCheck]:
    """Return the checks of an agent that starts in this environment."""
    try:
        fabric = FabricSettings()
    except ValidationError as error:
        return [failed("settings", error)]
    checks = [HostCheck(name="user", ok=True, detail=f"the checks run as {user_name()}")]
    if fabric.credential_file is not None:
        checks.append(file_check("BROADSIDE_CREDENTIAL_FILE", fabric.credential_file))
    checks += [
        file_check(name, Path(os.environ[name]))
        for name in ("BROADSIDE_AGENT_CERTIFICATE", "BROADSIDE_AGENT_CERTIFICATE_KEY")
        if os.environ.get(name)
    ]
    if folder := os.environ.get("BROADSIDE_AGENT_SPOOL_DIR"):
        checks.append(folder_check("BROADSIDE_AGENT_SPOOL_DIR", Path(folder)))
    return [*checks, *require_clock(agent_checks([])), *await agent_fabric_checks()]


def _group() -> str:
    import grp

    with contextlib.suppress(KeyError):
        return grp.getgrgid(os.getegid()).gr_name
    return str(os.getegid())


def main(arguments: list[str]) -> None:
    """Print the checks of a service.

    Args:
        arguments: Name of the service, and ``--running`` if it runs.
    """
    is_running = "--running" in arguments
    if arguments[0] == "agent":
        checks = asyncio.run(agent_service_checks())
    else:
        checks = asyncio.run(coordinator_service_checks(is_running=is_running))
    sys.stdout.write(TypeAdapter(list[HostCheck]).dump_json(checks).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
