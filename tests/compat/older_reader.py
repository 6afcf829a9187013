"""Reader of current messages that uses an earlier version on PYTHONPATH.

Standard input is a JSON list of pairs of model name and text. Standard output is a list of results.
A result is an empty text, or the reason of the error.
"""

import importlib
import importlib.util
import json
import sys

# Names of messages in the earlier version.
FORMER = {"HostInfo": "Passport"}


def main() -> None:
    # The oldest version has packages without a prefix, and today's version is installed beside it.
    prefix = "" if importlib.util.find_spec("agent") else "broadside."
    decide = importlib.import_module(f"{prefix}agent.decide")
    messages = importlib.import_module(f"{prefix}exchange.messages")
    core = f"{prefix}coordinator.core"
    is_new = importlib.util.find_spec(f"{core}.run_spec") is not None
    plans = importlib.import_module(f"{core}.run_spec" if is_new else f"{core}.plan.spec")
    lines = []
    for name, text in json.load(sys.stdin):
        try:
            if name == "Job":
                job = decide.read_job(text.encode())
                lines.append("" if isinstance(job, messages.Job) else repr(job))
            elif name == "Plan":
                plan = plans.Plan.model_validate_json(text)
                lines.append("" if plan.is_intact else "its seal is not what it hashes to")
            else:
                getattr(messages, FORMER.get(name, name)).model_validate_json(text)
                lines.append("")
        except Exception as error:
            lines.append(repr(error))
    json.dump(lines, sys.stdout)


if __name__ == "__main__":
    main()
