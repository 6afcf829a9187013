"""Reader of current messages with an earlier version, which is on PYTHONPATH.

Standard input is a JSON list of pairs of model name and text. Standard output is a list of results:
an empty text, or the reason why it cannot be read.
"""

import importlib
import json
import sys


def main() -> None:
    try:
        prefix = "broadside."
        decide = importlib.import_module("broadside.agent.decide")
    except ModuleNotFoundError:
        prefix = ""
        decide = importlib.import_module("agent.decide")
    messages = importlib.import_module(f"{prefix}exchange.messages")
    plans = importlib.import_module(f"{prefix}coordinator.core.plan.spec")
    said = []
    for name, text in json.load(sys.stdin):
        try:
            if name == "Job":
                found = decide.read_job(text.encode())
                said.append("" if isinstance(found, messages.Job) else repr(found))
            elif name == "Plan":
                plan = plans.Plan.model_validate_json(text)
                said.append("" if plan.is_intact else "its seal is not what it hashes to")
            else:
                getattr(messages, name).model_validate_json(text)
                said.append("")
        except Exception as error:
            said.append(repr(error))
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
