// Makes elements. Text always goes in as text: nothing here parses markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "class") element.className = value;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined),
  );
  return element;
}

// Writes only what differs, so that a screen reader and the layout are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function announce(text) {
  say(document.getElementById("say"), text);
}

export function table(caption, columns, rows, { numeric = [], wide = false } = {}) {
  const cell = (tag, value, index, extra = {}) =>
    h(tag, { class: numeric.includes(index) ? "number" : null, ...extra }, value);
  return h(
    "div",
    {
      class: wide ? "scroll wide" : "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": caption,
    },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((name, i) => cell("th", name, i, { scope: "col" })),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((value, i) => cell("td", value, i)),
          ),
        ),
      ),
    ),
  );
}

export function notice(kind, title, detail = null, ...more) {
  return h(
    "div",
    { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "note" },
    h("strong", {}, title),
    detail ? h("p", {}, detail) : null,
    ...more,
  );
}
