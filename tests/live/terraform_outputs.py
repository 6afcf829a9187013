"""Run Terraform on configurations without providers, to compute variables, locals and outputs."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

_QUIET = {"CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}


def outputs(folder: Path) -> dict[str, Any]:
    """Apply a configuration and return its outputs.

    If this fails, the AssertionError contains Terraform's message.
    """
    done = subprocess.run(
        ["terraform", "apply", "-auto-approve", "-input=false", "-no-color"],
        cwd=folder,
        env=os.environ | _QUIET,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    state = json.loads((folder / "terraform.tfstate").read_text())
    return {name: output["value"] for name, output in state["outputs"].items()}
