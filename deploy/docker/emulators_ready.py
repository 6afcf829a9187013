"""Waits until the emulators answer, and makes the tables: ``emulators_ready.py HEALTH_URL``."""

import sys
import time
import urllib.request
from contextlib import suppress
from typing import Final

from azure.core.exceptions import ResourceExistsError
from azure.data.tables import TableServiceClient

from broadside.exchange.fabric import FabricSettings

PATIENCE_S: Final = 180.0


def wait_for(url: str) -> None:
    """Return once ``url`` answers with success; exit with a line when it does not in time."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - the compose file's own URL
                return
        except OSError as error:
            if time.monotonic() > end_s:
                sys.exit(f"{url}: not well within {PATIENCE_S:g} s: {error}")
            time.sleep(1)


def make_tables(settings: FabricSettings) -> None:
    """Create the tables that the settings name, unless they are there."""
    secret = settings.tables_connection_string
    if secret is None:
        sys.exit("BROADSIDE_TABLES_CONNECTION_STRING: not set; name the emulator")
    with TableServiceClient.from_connection_string(secret.get_secret_value()) as service:
        for name in (settings.tables_control, settings.tables_results, settings.tables_private):
            with suppress(ResourceExistsError):
                service.create_table(name)


if __name__ == "__main__":
    wait_for(sys.argv[1])
    make_tables(FabricSettings())
