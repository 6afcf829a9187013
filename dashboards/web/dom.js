// Makes elements. Text always goes in as text: nothing here parses markup.

const isThere = (child) => child !== null && child !== undefined;

// A tag with its classes, as `p.quiet`; then attributes, where it has any; then children.
export function h(selector, ...rest) {
  const [tag, ...classes] = selector.split(".");
  const attributes = rest[0]?.constructor === Object ? rest.shift() : {};
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (!isThere(value) || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  return fill(element, rest);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isThere));
  return element;
}

const filledFor = new WeakMap();

// Fills an element anew only when what it is filled for, as JSON, has changed.
export function refill(element, key, children) {
  const text = JSON.stringify(key);
  if (filledFor.get(element) === text) return;
  filledFor.set(element, text);
  fill(element, ...children());
}

// Writes only what differs, so that a screen reader and the layout are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function announce(text) {
  say(document.getElementById("say"), text);
}

// An input under its label, which may have a quiet word behind it.
export const field = (label, input, note = null) =>
  h("div", h("label", { for: input.id }, label, note ? h("span.quiet", note) : null), input);

// A line of a list of facts.
export const fact = (name, value, note = null) => [
  h("dt", name, note ? h("span", note) : null),
  h("dd", value),
];

export const FIGURE = "number"; // the class of a column of figures

// A row an item; a column is its name, what it says of an item, and FIGURE where that is one.
export function table(caption, columns, items, { wide = false } = {}) {
  const head = columns.map(([name, , kind]) => h("th", { class: kind, scope: "col" }, name));
  const row = (item) => columns.map(([, say, kind]) => h("td", { class: kind }, say(item)));
  return h(
    wide ? "div.scroll.wide" : "div.scroll",
    { tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      h("caption.unseen", caption),
      h("thead", h("tr", head)),
      h(
        "tbody",
        items.map((item) => h("tr", row(item))),
      ),
    ),
  );
}

// What the coordinator said no with.
export const refused = (problem, ...more) => notice("bad", problem.title, problem.message, ...more);

// The same function, but what the coordinator refuses is said in `part`; that a token has lapsed is the
// sign-in's to say.
export const guarded =
  (part, ask) =>
  (...given) =>
    ask(...given).catch((problem) => {
      if (problem.status !== 401) fill(part, refused(problem));
    });

// Looks now, and every so often while the page is seen; returns what ends it.
export function every(ms, look) {
  look();
  const timer = setInterval(() => document.hidden || look(), ms);
  return () => clearInterval(timer);
}

export function notice(kind, title, detail = null, ...more) {
  return h(
    "div",
    { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "note" },
    h("strong", title),
    detail ? h("p", detail) : null,
    ...more,
  );
}
