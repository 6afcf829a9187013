"""Run the broker as a process, using ``python -m broadside.lab.servicebus``.

It prints its port as a line of JSON.
"""

import argparse
import asyncio
import json
import signal
import ssl
import sys
from pathlib import Path

from broadside.lab.servicebus.access_tokens import TokenVerifier
from broadside.lab.servicebus.journal import Journal
from broadside.lab.servicebus.listener import Server
from broadside.lab.servicebus.protocol import IDLE_S, Broker
from broadside.lab.servicebus.queues import QueueSettings


def _queue(text: str) -> tuple[str, QueueSettings]:
    """``jobs`` or ``jobs:{"lock_s": 5, "max_delivery_count": 3}``."""
    name, _, settings = text.partition(":")
    try:
        return name, QueueSettings(**json.loads(settings or "{}"))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"settings of queue {name!r}: {error}") from error


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("broadside.lab.servicebus", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5672, help="0 selects a free port")
    parser.add_argument("--queue", type=_queue, action="append", default=[], help=_queue.__doc__)
    parser.add_argument("--tls-cert", type=Path, help="PEM chain; if set, only TLS is accepted")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--sas-policy", default="RootManageSharedAccessKey")
    parser.add_argument("--sas-key-file", type=Path, help="holds the policy's key")
    parser.add_argument("--jwt-key-file", type=Path, help="holds the HS256 key of accepted JWTs")
    parser.add_argument("--state", type=Path, help="journal to resume from; none: memory only")
    parser.add_argument("--admin", type=Path, help="Unix socket for faults and counts")
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    tls = None
    if arguments.tls_cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(arguments.tls_cert, arguments.tls_key)
    sas_key, jwt_key = (
        path.read_text().strip() if path else None
        for path in (arguments.sas_key_file, arguments.jwt_key_file)
    )
    guard = TokenVerifier(
        sas_keys={arguments.sas_policy: sas_key} if sas_key else {}, jwt_key=jwt_key
    )
    broker = Broker(guard, idle_s=arguments.idle_s)
    journal = Journal(arguments.state) if arguments.state else None
    broker.queues |= journal.queues if journal else {}
    server = Server(broker, journal=journal, tls=tls)
    for path, settings in arguments.queue:
        server.create_queue(path, settings)
    await server.start(arguments.host, arguments.port, arguments.admin)
    print(json.dumps({"port": server.port}), flush=True)  # noqa: T201 - that is the interface
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop()


try:
    asyncio.run(_serve(_arguments()))
except OSError as error:
    sys.exit(f"broadside.lab.servicebus: {error}")
