"""Stand-ins for the Azure services that a VM uses, in the network of this process.

    python -m tests.shipped.azure_stand_ins FOLDER ADDRESS

The services are Service Bus (the lab's broker) and Storage (Azurite) over TLS with bearer tokens.
The metadata service at its own address 169.254.169.254 issues the tokens. A time server replaces
the clock of Azure's hypervisor. The program prints the addresses as one line of JSON. Then it
answers each line of standard input with one line. ``rows PARTITION`` returns the rows of that
partition of the results. ``upload PATH`` uploads the file to the container ``agent``. The program
ends with standard input.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from azure.data.tables import TableClient
from azure.storage.blob import BlobServiceClient

from broadside.lab.azurite import Azurite
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.child_processes import die_with_parent
from broadside.lab.servicebus.access_tokens import issue_jwt
from broadside.lab.servicebus.queues import QueueSettings
from tests.live.certificates import make_certificates
from tests.live.http_service import Answer, Asked, serving
from tests.live.started import started
from tests.live.tls_queue import JWT_KEY, NAMESPACE

METADATA: Final = "169.254.169.254"
CONTAINER: Final = "agent"
ISSUER: Final = "https://sts.windows.net/11111111-1111-1111-1111-111111111111/"
TOKEN_S: Final = 3600.0
CLOCK: Final = "local stratum 5\nallow\ncmdport 0\npidfile {folder}/chronyd.pid\n"


def main() -> None:
    """Serve until standard input ends."""
    folder, host = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    certificates = make_certificates(folder, host)
    tls = (certificates.chain, certificates.key)
    subprocess.run(["ip", "addr", "add", f"{METADATA}/32", "dev", "lo"], check=True)
    for name in ("broker", "azurite"):
        (folder / name).mkdir()
    queues = {"jobs": QueueSettings(lock_s=10, max_delivery_count=5)}
    broker = BrokerProcess(folder / "broker", queues, host=host, jwt_key=JWT_KEY, tls=tls)
    storage = Azurite(folder / "azurite", host=host, tls=tls)
    with (
        started(broker),
        started(storage),
        serving(answer_metadata, (METADATA, 80)),
        clock(folder),
    ):
        storage.create_tables(authority=certificates.authority)
        storage.create_container(CONTAINER, authority=certificates.authority)
        fields = {
            "authority": certificates.authority.read_text(),
            "container": f"{storage.blob_endpoint}/{CONTAINER}",
            "tables": storage.endpoint,
            "servicebus_namespace": NAMESPACE,
            "servicebus_endpoint": f"sb://{host}:{broker.port}",
        }
        report(json.dumps(fields))
        for line in sys.stdin:
            part, _, argument = line.strip().partition(" ")
            if part == "rows":
                report(json.dumps(read_rows(storage, argument, certificates.authority)))
            else:
                upload(storage, Path(argument), certificates.authority)
                report("uploaded")


def read_rows(storage: Azurite, partition: str, authority: Path) -> dict[str, str]:
    """Return the property ``json`` of a partition's rows by row key."""
    with TableClient.from_connection_string(
        storage.connection_string(), "results", connection_verify=str(authority)
    ) as table:
        result = table.query_entities(f"PartitionKey eq '{partition}'")
        return {str(row["RowKey"]): str(row["json"]) for row in result}


def upload(storage: Azurite, path: Path, authority: Path) -> None:
    """Upload a file under its own name."""
    with (
        BlobServiceClient.from_connection_string(
            storage.connection_string(), connection_verify=str(authority)
        ) as service,
        path.open("rb") as file,
    ):
        service.get_blob_client(CONTAINER, path.name).upload_blob(file)


def report(line: str) -> None:
    """Print a line and flush the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer_metadata(request: Asked) -> Answer:
    """Return a token like the instance metadata service, if the required header is present."""
    if request.headers["Metadata"] != "true" or "resource" not in request.query:
        return Answer(status=400, body={"error": "invalid_request"})
    if not request.query.get("client_id"):
        return Answer(status=400, body={"error_description": "Identity not found"})
    resource, now = request.query["resource"][0], time.time()
    claims = {"iss": ISSUER, "nbf": int(now - 60), "iat": int(now - 60)}
    token = issue_jwt(JWT_KEY, now=now, ttl_s=TOKEN_S, audience=resource.rstrip("/"), **claims)
    body = {"access_token": token, "expires_on": str(int(now + TOKEN_S)), "resource": resource}
    return Answer(body=body | {"expires_in": str(int(TOKEN_S)), "token_type": "Bearer"})


@contextlib.contextmanager
def clock(folder: Path) -> Iterator[None]:
    """Serve the time of this machine at port 123 without setting the clock."""
    settings = folder / "chronyd.conf"
    settings.write_text(CLOCK.format(folder=folder))
    argv = ["chronyd", "-d", "-x", "-u", "root", "-f", str(settings)]
    with (folder / "chronyd.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, preexec_fn=die_with_parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main()
