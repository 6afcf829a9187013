// Reference of the REST API. You can use it to try the operations with your own role.

import { ask, read } from "./api.js";
import { fill, h, refused } from "./dom.js";

const ANSWER_MAX_CHARS = 20_000;

function resolve(document_, schema) {
  let at = schema;
  while (at?.$ref) {
    const path = at.$ref.slice(2).split("/");
    at = path.reduce((part, name) => part[name], document_);
  }
  return at ?? {};
}

function typeOf(document_, schema) {
  if (schema?.$ref) return schema.$ref.split("/").pop();
  const one = resolve(document_, schema);
  if (one.enum) return one.enum.map(String).join(" | ");
  const options = one.anyOf ?? one.oneOf;
  if (options) return options.map((each) => typeOf(document_, each)).join(" or ");
  if (one.type === "array") return `list of ${typeOf(document_, one.items)}`;
  return [one.type, one.format].filter(Boolean).join(", ") || "any";
}

// Show text between backticks as code.
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", part) : part));

export function apiView(main, _, { operator }) {
  const list = h("div.stack", h("p.quiet", "Loading."));
  main.append(h("div.title", h("h1", "REST API")), list);
  read("/openapi.json")
    .then((described) => fill(list, ...sections(described)))
    .catch((problem) => fill(list, refused(problem)));

  function sections(described) {
    const link = h("a", { href: "/openapi.json" }, "/openapi.json");
    const head = h("p", ...prose(described.info.description.trim()), " The document: ", link);
    return [
      head,
      ...described.tags.map(({ name, description }) => {
        const found = Object.entries(described.paths).flatMap(([path, methods]) =>
          Object.entries(methods)
            .filter(([, operation]) => operation.tags?.includes(name))
            .map(([method, operation]) => one(described, method.toUpperCase(), path, operation)),
        );
        return h("section.card", h("h2", name), h("p", description), ...found);
      }),
    ];
  }

  function one(described, method, path, operation) {
    const shown = h(
      "details.operation",
      h(
        "summary",
        h("code", `${method} ${path}`),
        ` ${operation.summary ?? ""}`,
        operation["x-access"] ? h("span.quiet", `, ${operation["x-access"]}`) : null,
      ),
    );
    // Create the form when you open the operation, because there are about 60 operations.
    shown.addEventListener("toggle", () => {
      if (shown.open && shown.children.length === 1)
        shown.append(...form(described, method, path, operation));
    });
    return shown;
  }

  function form(described, method, path, operation) {
    const id = (name) => `${operation.operationId}-${name}`;
    const inputs = (operation.parameters ?? []).map((given) => resolve(described, given));
    const fields = inputs.map((given) => ({
      given,
      input: h("input", { id: id(given.name), required: given.required, autocomplete: "off" }),
    }));
    const content = operation.requestBody?.content?.["application/json"];
    const body = content
      ? h("textarea", {
          id: id("body"),
          rows: "8",
          spellcheck: "false",
          value: JSON.stringify(content.example ?? {}, null, 2),
        })
      : null;
    const answer = h("pre.answer", { tabindex: "0", hidden: true, "aria-live": "polite" });
    const may = operation["x-access"] !== "operator" || operator;
    const allowed = Object.entries(operation.responses)
      .map(([status, { description }]) => `${status} ${description}`)
      .join("; ");

    async function go(event) {
      event.preventDefault();
      let to = path;
      const query = new URLSearchParams();
      const more = {};
      for (const { given, input } of fields) {
        if (!input.value) continue;
        if (given.in === "path")
          to = to.replace(`{${given.name}}`, encodeURIComponent(input.value));
        else if (given.in === "query") query.append(given.name, input.value);
        else more[given.name] = input.value;
      }
      const url = query.size ? `${to}?${query}` : to;
      answer.hidden = false;
      answer.textContent = `${method} ${url}\n`;
      try {
        const parsed = body ? JSON.parse(body.value) : undefined;
        const got = await ask(url, { method, body: parsed, more });
        const type = got.headers.get("Content-Type") ?? "";
        const text = type.includes("json")
          ? JSON.stringify(await got.json(), null, 2)
          : type.startsWith("text/") && !type.includes("event-stream")
            ? await got.text()
            : `(${type})`;
        answer.textContent += `${got.status}\n${text.slice(0, ANSWER_MAX_CHARS)}`;
      } catch (problem) {
        answer.textContent += `${problem.status ?? "not sent"}\n${problem.message}`;
      }
    }

    return [
      h("p", ...prose(operation.description ?? "")),
      h(
        "form",
        { onsubmit: go },
        ...fields.map(({ given, input }) =>
          h(
            "div",
            h(
              "label",
              { for: input.id },
              h("code", given.name),
              h(
                "span.quiet",
                ` ${given.in}, ${typeOf(described, given.schema)}. `,
                ...prose(given.description ?? ""),
              ),
            ),
            input,
          ),
        ),
        body
          ? h(
              "div",
              h("label", { for: body.id }, `Body: ${typeOf(described, content.schema)}`),
              body,
            )
          : null,
        h("button", { disabled: !may }, may ? "Try it" : "Operators only"),
      ),
      answer,
      h("p.quiet", `Responses: ${allowed}`),
    ];
  }
}
