"""Print the table of all attacks with their attempt and defence. Use ``python -m tests.attack``."""

import argparse
import asyncio
import importlib
import logging
import pkgutil
import sys
import time
import traceback
from collections import Counter

import tests.attack
from tests.attack import Attack
from tests.attack.fuzzed import fuzz_messages, fuzz_rows
from tests.attack.fuzzed_coordinator import fuzz_coordinator
from tests.attack.fuzzed_port import fuzz_port


def attacks() -> list[Attack]:
    """Return the attacks of all modules in this package that have ``ATTACKS``."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.attack.__path__))
    modules = [importlib.import_module(f"tests.attack.{name}") for name in names if name[0] != "_"]
    return [item for module in modules for item in getattr(module, "ATTACKS", ())]


def fight(attack: Attack) -> tuple[bool, str]:
    """Run an attack and return whether it was stopped, and the defence."""
    try:
        return True, attack.run()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return False, f"NOT STOPPED: {type(error).__name__} {error} ({place.name}:{place.lineno})"


def fuzz(count: int, seed: int) -> None:
    """Send ``count`` operations to the agents' port, and process ``count`` messages and rows.

    A quarter are messages to agents, a quarter are rows for agents, and half are for the
    coordinator.
    """
    logging.disable(logging.CRITICAL)
    began_s, reported = time.monotonic(), Counter[str]()
    port = fuzz_port(count, seed, settles=True)
    reported += asyncio.run(fuzz_messages(count // 4, seed)) + asyncio.run(
        fuzz_rows(count // 4, seed)
    )
    reported += fuzz_coordinator(count - 2 * (count // 4), seed)
    for what, number in sorted(reported.items()):
        print(f"{number:8d} {what}")  # noqa: T201
    print(port)  # noqa: T201
    took_s = time.monotonic() - began_s
    print(f"{reported.total()} in {took_s:.0f} s, seed {seed}: no process ended")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="attacks with this text in name or boundary")
    parser.add_argument(
        "--fuzz", type=int, metavar="N", help="N invalid operations, messages and rows"
    )
    parser.add_argument("--seed", type=int, default=20261122)
    given = parser.parse_args()
    if given.fuzz is not None:
        fuzz(given.fuzz, given.seed)
        return
    logging.disable(logging.CRITICAL)
    wanted = given.only
    began_s, succeeded, count = time.monotonic(), 0, 0
    for attack in attacks():
        if wanted not in attack.name and wanted not in attack.boundary:
            continue
        stopped, by = fight(attack)
        count, succeeded = count + 1, succeeded + (not stopped)
        row = (attack.boundary, attack.name, attack.tried, " ".join(by.split())[:300])
        print("{:24.24} | {:48.48} | {:44.44} | {}".format(*map(_line, row)))  # noqa: T201
    print(f"{count} attacks, {succeeded} succeeded, {time.monotonic() - began_s:.0f} s")  # noqa: T201
    sys.exit(bool(succeeded) or not count)


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "." for letter in text)


if __name__ == "__main__":
    main()
