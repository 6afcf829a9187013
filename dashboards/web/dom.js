// Functions to create HTML elements. A string is always added as text and not parsed as HTML, so
// you do not need to escape it.

const isThere = (child) => child !== null && child !== undefined;

// Create an element. The selector is a tag with optional classes, for example `p.quiet`. You can
// add attributes, and then children.
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

// Replace the children of an element if the key has changed. The key is compared as JSON.
export function refill(element, key, children) {
  const text = JSON.stringify(key);
  if (filledFor.get(element) === text) return;
  filledFor.set(element, text);
  fill(element, ...children());
}

// Set the text of an element. If the text is the same, we should not change the
// DOM, because a screen reader would read it again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function announce(text) {
  say(document.getElementById("say"), text);
}

// Create an input with a label and, if given, a note.
export const field = (label, input, note = null) =>
  h("div", h("label", { for: input.id }, label, note ? h("span.quiet", note) : null), input);

// Create a name and a value to add to a list of facts.
export const fact = (name, value, note = null) => [
  h("dt", name, note ? h("span", note) : null),
  h("dd", value),
];

// Class to use for a column of numbers.
export const FIGURE = "number";

// Class to use for a column of long texts. On a small screen it has a line of its own.
export const LONG = "long";

// Create a table with a row for each item. A column has a name, a function to get the text from
// an item, and the class FIGURE if it is for numbers. On a small screen each row becomes a card with
// the first column as its title, except for a `dense` table.
export function table(caption, columns, items, { wide = false, dense = false } = {}) {
  const head = columns.map(([name, , kind]) => h("th", { class: kind, scope: "col" }, name));
  const row = (item) =>
    columns.map(([name, say, kind]) => h("td", { class: kind, "data-name": name }, say(item)));
  return h(
    wide ? "div.scroll.wide" : "div.scroll",
    { tabindex: "0", role: "region", "aria-label": caption },
    h(
      dense ? "table" : "table.cards",
      h("caption.unseen", caption),
      h("thead", h("tr", head)),
      h(
        "tbody",
        items.map((item) => h("tr", row(item))),
      ),
    ),
  );
}

// Format an interval that the coordinator has written in ASCII.
export const prose = (text) => text.replaceAll("+-", "±");

// Create a message for an error that was returned by the coordinator.
export const refused = (problem, ...more) => notice("bad", problem.title, problem.message, ...more);

// Wrap a function so that an error from the coordinator is shown in `part`. If the
// token has expired, the user will have to sign in again.
export const guarded =
  (part, ask) =>
  (...given) =>
    ask(...given).catch((problem) => {
      if (problem.status !== 401) fill(part, refused(problem));
    });

// Call a function now and then at an interval, but only if the page is visible and the last call
// has ended. Use the returned function to stop it.
export function every(ms, look) {
  let busy = false;
  const next = async () => {
    if (busy) return;
    busy = true;
    try {
      await look();
    } finally {
      busy = false;
    }
  };
  next();
  const timer = setInterval(() => document.hidden || next(), ms);
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
