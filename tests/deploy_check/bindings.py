"""Schema of an unavailable provider, from the bindings that HashiCorp generated from it.

Usage: ``python -m tests.deploy_check.bindings OUTPUT WHEEL RESOURCE...``. It reads a wheel of the
Terraform CDK (``pip download --no-deps cdktf-cdktf-provider-aws``). It writes the arguments of some
resources in the form of ``terraform providers schema -json``. The result has almost no limits on
the number of blocks, and no checks of the provider's code.
"""

import argparse
import ast
import gzip
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

_SCALARS: Final = {"builtins.str": "string", "jsii.Number": "number", "builtins.bool": "bool"}
_NOT_THE_PROVIDERS: Final = frozenset(
    {"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"}
)
_PROVIDER: Final = re.compile(r"registry\.terraform\.io/providers/([\w-]+/[\w-]+)/([\d.]+)/")


def block(classes: dict[str, ast.ClassDef], name: str) -> dict[str, Any]:
    """Return a class of the bindings as a block of the schema."""
    (made,) = (
        each
        for each in classes[name].body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    blocks_told = set(re.findall(r":param (\w+): \1 block\.", ast.get_docstring(made) or ""))
    attributes: dict[str, Any] = {}
    blocks: dict[str, Any] = {}
    for argument, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
        if argument.arg in _NOT_THE_PROVIDERS or argument.annotation is None:
            continue
        kind = ast.unparse(argument.annotation)
        required = default is None
        inner = next((each for each in re.findall(r"\w+", kind) if each in classes), None)
        if inner is not None and argument.arg in blocks_told:
            blocks[argument.arg] = {
                "block": block(classes, inner),
                "min_items": int(required),
                "max_items": 0 if "typing.Sequence" in kind else 1,
            }
        else:
            told = {"type": _type(kind), "required" if required else "optional": True}
            attributes[argument.arg] = told
    return {"attributes": attributes, "block_types": blocks}


def _type(kind: str) -> Any:
    scalar = next((name for text, name in _SCALARS.items() if kind.count(text)), "dynamic")
    if "typing.Mapping[" in kind:
        return ["map", scalar if kind.count("builtins.str") < 2 else "string"]
    return ["list", scalar] if "typing.Sequence[" in kind else scalar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("resource", nargs="+", help="such as aws_launch_template")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    provider = version = ""
    with zipfile.ZipFile(options.wheel) as wheel:
        package = next(name.split("/")[0] for name in wheel.namelist())
        for resource in options.resource:
            short = resource.partition("_")[2]
            text = wheel.read(f"{package}/{short}/__init__.py").decode()
            provider, version = next(iter(_PROVIDER.findall(text)))
            classes = {
                each.name: each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)
            }
            top = "".join(word.capitalize() for word in short.split("_")) + "Config"
            found[resource] = {"block": block(classes, top)}
    printed = {
        "source": f"{options.wheel.name}, of {provider} {version}",
        "provider_schemas": {
            provider: {
                "resource_schemas": found,
                "data_source_schemas": {},
                "provider": {"block": {}},
            }
        },
    }
    with gzip.GzipFile(options.output, "wb", mtime=0) as file:
        file.write(json.dumps(printed, sort_keys=True).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
