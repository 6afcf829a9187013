"""Runs each example: apply, plan again, resize and destroy (``python -m tests.azure_emulator``)."""

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.azure_emulator import range_mutants
from tests.azure_emulator.day_one import follow
from tests.azure_emulator.platform import plant_locked_hub
from tests.azure_emulator.range_cases import (
    Fault,
    Report,
    examples,
    failed_up,
    healed,
    killed,
    live,
    parked,
    variants,
)
from tests.azure_emulator.stage import (
    COMMANDS,
    Missing,
    Stage,
    Stopped,
    Tools,
    find_tools,
    set_stage,
)

_PREFIX: Final = "rehearsal-"
_WATCH_S: Final = 1.0
PASSED, FAULTY, CANNOT_RUN = 0, 1, 4
_ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def plays(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[Stage], Report]]]:
    """Yield the cases by name."""
    all_ = [*examples(), *variants()]
    for case in all_:
        yield case.name, lambda stage, case=case: live(stage, case, store=arguments.store)  # type: ignore[misc]
    small = next(case for case in all_ if case.name == "scale-180g")
    yield "day-one", lambda stage: follow(stage, "From an empty subscription")
    yield "day-one-existing", day_one_existing
    yield "parked", lambda stage: parked(stage, small)
    yield "failing", lambda stage: failed_up(stage, small)
    soak = next(case for case in all_ if case.name == "soak")
    yield "healed", lambda stage: healed(stage, soak)
    yield "killed", lambda stage: killed(stage, small, arguments.kills, arguments.seed)


def day_one_existing(stage: Stage) -> Report:
    plant_locked_hub(stage)
    return follow(stage, "From a production firewall")


def play(name: str, act: Callable[[Stage], Report], tools: Tools, kept_folder: Path | None) -> bool:
    """Run one case on its own stage and return whether it passed."""
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as temporary:
        folder = kept_folder / name if kept_folder else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with set_stage(tools, folder) as stage:
            try:
                report = act(stage)
            except Fault as fault:
                notes = [f"         {note}" for note in stage.subscription.notes]
                print_line("\n".join([f"FAULTY   {name}: {fault}", *notes]))
                return False
            finally:
                if kept_folder:
                    _write_log(folder / "log", stage)
    unknown = [f"         not among the types given: {it}" for it in sorted(report.unpublished)]
    print_line("\n".join([f"ok       {report.line()}", *unknown]))
    return True


def _write_log(path: Path, stage: Stage) -> None:
    path.write_text(
        "\n".join(f"$ {' '.join(done.argv)}\n{done.output}" for done in stage.log), "utf-8"
    )


def run_mutants(count: int, seed: int) -> int:
    """Print the outcome of random changes, and return 1 if too many survive."""
    score = range_mutants.run(count, seed, print_line)
    return PASSED if score >= range_mutants.SCORE_MIN_RATIO else FAULTY


def end_with_make() -> None:
    """End this process with SIGTERM when the ``make`` that runs it is gone, also by SIGKILL."""
    if (make := _ancestor("make")) is None:
        return

    def watch() -> None:
        while _name_and_parent(make)[0] == "make":
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _ancestor(name: str) -> int | None:
    """Return the process id of the nearest ancestor with a name, or None."""
    pid = os.getppid()
    while pid > 1:
        matches, parent = _name_and_parent(pid)
        if matches == name:
            return pid
        pid = parent
    return None


def _name_and_parent(pid: int) -> tuple[str, int]:
    """Return name and parent of a process, empty and 0 if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return "", 0
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return ("", 0) if state == "Z" else (name, int(parent))


def remove_stale_folders() -> None:
    """Remove the folders of rehearsals that were killed, named by their process id."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = folder.name.removeprefix(_PREFIX).split("-")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _end(number: int, _: object) -> None:
    """Stop once. A second signal must not interrupt the clean-up of the stages."""
    for item in _ENDS:
        signal.signal(item, signal.SIG_IGN)
    raise Stopped(signal.Signals(number).name)


def main() -> int:
    """Run the cases and return 0 if all pass, 1 with faults, 4 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="tests.azure_emulator", description=__doc__)
    parser.add_argument("--only", action="append", help="a case's name; may come again")
    parser.add_argument("--kills", type=int, default=5, help="kills of each command")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of kills and mutants")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time; most is waits")
    parser.add_argument("--keep", type=Path, help="folder for the files and logs of each case")
    parser.add_argument("--mutants", type=int, help="change stored ranges; nothing is applied")
    parser.add_argument("--store", action="store_true", help="store the applied states as fixtures")
    parser.add_argument("--log", action="store_true", help="log every request")
    arguments = parser.parse_args()
    if arguments.log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.mutants:
        return run_mutants(arguments.mutants, arguments.seed)
    try:
        tools = find_tools()
    except Missing as missing:
        print_line(f"rehearsal: not run: {missing}")
        return CANNOT_RUN
    chosen = [item for item in plays(arguments) if not arguments.only or item[0] in arguments.only]
    if not chosen:
        parser.error(
            f"--only {arguments.only}: must be of {[name for name, _ in plays(arguments)]}"
        )
    print_line(f"rehearsal: seed {arguments.seed}, {len(chosen)} cases, {arguments.jobs} at a time")
    began_s = time.monotonic()
    remove_stale_folders()
    end_with_make()
    for number in _ENDS:
        signal.signal(number, _end)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            record_success = pool.map(
                lambda item: play(item[0], item[1], tools, arguments.keep), chosen
            )
            failed = sum(not item for item in record_success)
        except Stopped as stopped:
            pool.shutdown(wait=False, cancel_futures=True)
            COMMANDS.stop()
            print_line(f"rehearsal: stopped by {stopped}; every command on a stage was killed")
            return 128 + signal.Signals[str(stopped)]
    print_line(
        f"rehearsal: {len(chosen)} cases, {failed} faulty, {time.monotonic() - began_s:.0f} s"
    )
    return FAULTY if failed else PASSED


if __name__ == "__main__":
    sys.exit(main())
