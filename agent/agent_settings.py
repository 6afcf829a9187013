"""Settings for an agent, read from environment variables ``BROADSIDE_AGENT_*``.

This module does not inspect the host. The lab creates settings in one network namespace and runs
the agent in another. :mod:`broadside.agent.host` detects unset values when the agent starts.
"""

import os
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from broadside.exchange.engines import engines, find
from broadside.exchange.engines.port import ServerLifetime
from broadside.exchange.messages import Identifier, RawPolicy, Role, parse_address

IpNetwork = IPv4Network | IPv6Network

PRIVATE_NETWORKS: Final = (
    # RFC 1918.
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    # Loopback.
    "127.0.0.0/8",
    "::1/128",
    # RFC 4193.
    "fc00::/7",
)


def parse_ports(value: object) -> object:
    """Convert ``"5201-5204,5210"`` to ``(5201, 5202, 5203, 5204, 5210)``.

    Other types are returned unchanged.

    Raises:
        ValueError: A part is not a port or a range of ports.
    """
    if not isinstance(value, str):
        return value
    ports: list[int] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        first, _, last = part.partition("-")
        try:
            ports += range(int(first), int(last or first) + 1)
        except ValueError:
            raise ValueError(
                f"{part!r} is not a port or a range; use e.g. 5201-5204,5210"
            ) from None
    return tuple(dict.fromkeys(ports))


def parse_services(value: object) -> object:
    """Convert ``"http=8080-8083 https:1.3=8444"`` to a dictionary with ports by service.

    A service is an engine, for https also with the TLS version and cipher suite that its ports
    enforce. Other types are returned unchanged.

    Raises:
        ValueError: A part has no ``=``, or its ports are invalid.
    """
    if not isinstance(value, str):
        return value
    services: dict[str, object] = {}
    for part in value.split():
        name, equals, ports = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not a service; use ENGINE=PORTS, e.g. http=8080-8083")
        services[name] = parse_ports(ports)
    return services


def split_service(service: str) -> tuple[str, str]:
    """Return the engine of a service, and its TLS version and cipher suite or an empty string."""
    name, _, tls = service.partition(":")
    return name, tls


def parse_networks(value: object) -> object:
    """Convert ``"10.0.0.0/8, fd00::/8"`` to networks.

    Other types are returned unchanged.

    Raises:
        ValueError: A part is not a network in CIDR notation.
    """
    if not isinstance(value, str):
        return value
    networks: list[IpNetwork] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"{error}; write CIDRs, e.g. 10.0.0.0/8,192.168.7.0/24") from None
    return tuple(networks)


def state_folder(agent_id: str, role: Role) -> Path:
    """Return the default spool folder for an agent, under ``$XDG_STATE_HOME``.

    The path contains the role. A client and a server on one host have the same name but need
    separate spools.

    Args:
        agent_id: Agent name.
        role: Agent role.
    """
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "broadside" / agent_id / role


class AgentSettings(BaseSettings):
    """Settings for one agent.

    If a job sets the same limit, the stricter value will be used.
    """

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_AGENT_", frozen=True)

    role: Role = Field(description="client (sends traffic and claims jobs) or server (listens)")
    agent_id: Identifier = Field(
        default_factory=socket.gethostname,
        description="name of this agent, unique in the fleet; default: the host name",
    )
    address: IPv4Address | IPv6Address | None = Field(
        None,
        description="address of this host for the test traffic; default: the source address "
        "of the default route",
    )
    ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode, BeforeValidator(parse_ports)
    ] = Field(
        (5201,),
        min_length=1,
        description="server role: ports to listen on, for example 5201 or 5201-5204",
    )
    services: Annotated[
        dict[str, tuple[Annotated[int, Field(ge=1, le=65535)], ...]],
        NoDecode,
        BeforeValidator(parse_services),
    ] = Field(
        {},
        description="server role: engines to serve in addition to iperf3 and their ports, one "
        "port per pair, for example http=8080-8083 https=8443-8446 ftp=2121; ftp also "
        "requires that 50000-59999 can be reached; https:VERSION or https:VERSION:CIPHER enforces "
        "a TLS version and OpenSSL's cipher suite, for example "
        "https:1.2:ECDHE-ECDSA-AES128-GCM-SHA256=8447",
    )
    echo_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        5200,
        description="server role: UDP port that answers probes from allowed networks; 0: any "
        "free port, which is reported in the presence",
    )
    canary_ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode, BeforeValidator(parse_ports)
    ] = Field(
        (),
        description="server role: ports that answer canaries (TCP, UDP) from allowed networks, for "
        "example 5198-5199; default: none",
    )
    allow_tunnels: bool = Field(
        False,
        description="allow VXLAN devices for bursts that request them; requires CAP_NET_ADMIN",
    )
    certificate: Path | None = Field(
        None,
        description="PEM file with the certificate for TLS services; default: a self-signed "
        "certificate is created",
    )
    certificate_key: Path | None = Field(
        None, description="PEM file with the key of the certificate"
    )
    allowed_networks: Annotated[
        tuple[IpNetwork, ...], NoDecode, BeforeValidator(parse_networks)
    ] = Field(
        tuple(ip_network(network) for network in PRIVATE_NETWORKS),
        description="networks (CIDR, comma-separated) that must contain every target; "
        "default: RFC 1918, RFC 4193 and loopback",
    )
    target_port_min: int = Field(
        1024,
        ge=1,
        le=65_535,
        description="lowest port to which traffic is sent; ports below 1024 are used by the "
        "services of a network",
    )
    duration_max_s: float = Field(
        3600, gt=0, description="longest burst that is accepted, in seconds"
    )
    bits_per_second_max: int | None = Field(
        None,
        gt=0,
        description="largest rate that is accepted, in bit/s over all streams and both flows; "
        "if set, jobs without pacing are rejected; default: no limit",
    )
    clock_bound_max_s: float | None = Field(
        None,
        gt=0,
        description="clock gate of this agent, in seconds; default: the clock gate of the job "
        "(0.05)",
    )
    late_after_s: float | None = Field(
        None,
        gt=0,
        description="seconds after the planned start after which data is late; default: the "
        "value of the job (1.0)",
    )
    chronyc_socket: str | None = Field(
        None,
        description="command socket or host of chronyd, as in chronyc -h; default: the "
        "default of chronyc, or adjtimex of the kernel if chronyd does not respond",
    )
    iperf3: Path | None = Field(None, description="path of iperf3; default: searched in PATH")
    use_gate: bool = Field(
        True, description="open all connections early and release them at the planned start"
    )
    arm_lead_s: float = Field(
        5.0,
        ge=1.5,
        # A server waits 10 s for the held connection (agent/gate.c).
        le=8,
        description="seconds before the planned start at which the engine is started with the "
        "start gate",
    )
    nic: str | None = Field(
        None, description="interface for the test traffic; default: the interface with the address"
    )
    nic_bits_per_second: int | None = Field(
        None, gt=0, description="bandwidth limit of the interface or the VM size, in bit/s"
    )
    vm_size: str | None = Field(None, description="VM size, for the report")
    host_alone: bool = Field(
        False,
        description="true if only this agent runs on the host, as on the VMs of the range; "
        "the CPU counters of the host then show the cost of the payload, including interrupts",
    )
    heartbeat_s: float = Field(5.0, ge=1, description="seconds between presence heartbeats")
    control_poll_s: float = Field(
        1.0,
        gt=0,
        le=2.5,
        description="seconds between two reads of the control row of the run during a burst",
    )
    upload_s: float = Field(
        3.0, gt=0, description="seconds between two uploads of measurements during a burst"
    )
    spool_dir: Path | None = Field(
        None,
        description="folder to store results while the table is not available; default: "
        "broadside/<agent_id>/<role> under $XDG_STATE_HOME",
    )
    spool_max_bytes: int = Field(
        256 * 2**20,
        gt=0,
        description="largest size of the spool; if the spool or its disk is full, rejected "
        "results are deleted first (oldest first), then raw output (newest first), then later "
        "results",
    )
    raw: RawPolicy = Field(
        RawPolicy.FAILED,
        description="tests for which a server stores the output of the engine: `all`, "
        "`failed` or `none`; for clients this is set by the run",
    )
    raw_max_bytes: int = Field(
        64 * 2**20,
        ge=2**20,
        description="largest output to store per engine, in bytes; the middle of a longer "
        "output is removed",
    )
    join: SecretStr | None = Field(
        None,
        description="join code from `broadside enroll new`, used once to get a credential for "
        "this agent; not needed if the agent already has a credential",
    )
    log_json: bool = Field(False, description="write the log as JSON lines")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @model_validator(mode="after")
    def _services_fit(self) -> "AgentSettings":
        for service in self.services:
            name, tls = split_service(service)
            engine = find(name)
            if engine is None or engine.serving is not ServerLifetime.DAEMON:
                known = [e.name for e in engines().values() if e.serving is ServerLifetime.DAEMON]
                raise ValueError(
                    f"services: {name!r} is unknown; use one of {', '.join(known)}"
                    + (" (iperf3's ports are BROADSIDE_AGENT_PORTS)" if engine else "")
                )
            if problem := engine.service_problem(tls):
                raise ValueError(f"services: {service}: {problem}")
        taken = [
            *self.ports,
            *self.canary_ports,
            *(port for ports in self.services.values() for port in ports),
        ]
        twice = {port for port in taken if taken.count(port) > 1}
        if (self.services or self.canary_ports) and twice:
            raise ValueError(
                f"port {min(twice)} is used twice; use a different port for each service"
            )
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate: set both certificate and certificate_key, or neither")
        return self

    @property
    def spool_path(self) -> Path:
        return self.spool_dir or state_folder(self.agent_id, self.role)

    def reaching(self, source_address: str) -> "AgentSettings":
        """Return settings that also allow tests between agents on this host.

        The address is added only if ``allowed_networks`` was not set by the operator.
        """
        if "allowed_networks" in self.model_fields_set or self.is_allowed(source_address):
            return self
        networks = (*self.allowed_networks, ip_network(source_address))
        return self.model_copy(update={"allowed_networks": networks})

    def is_allowed(self, address: str) -> bool:
        """Return True if a literal IP address is in an allowed network.

        Raises:
            ValueError: The text is not an IP address.
        """
        target = ip_address(parse_address(address))
        return any(target in network for network in self.allowed_networks)
