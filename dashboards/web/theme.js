// Light or dark theme. By default we use the setting of the system. If you print a page, the
// light theme is used.

import { h } from "./dom.js";

const KEY = "broadside-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

let paper = false;

export const printing = () => paper;
export const theme = () => document.documentElement.dataset.theme;

export function applyTheme() {
  const chosen = localStorage.getItem(KEY);
  const now = paper ? "light" : (chosen ?? (system.matches ? "dark" : "light"));
  if (now === theme()) return;
  document.documentElement.dataset.theme = now;
  dispatchEvent(new CustomEvent("theme"));
}

export function themeSwitch() {
  const button = h("button.plain", {
    type: "button",
    onclick() {
      localStorage.setItem(KEY, theme() === "dark" ? "light" : "dark");
      applyTheme();
    },
  });
  const label = () => {
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${theme() === "dark" ? "light" : "dark"} theme`);
  };
  label();
  addEventListener("theme", label);
  return button;
}

system.addEventListener("change", applyTheme);
for (const [name, now] of [
  ["beforeprint", true],
  ["afterprint", false],
])
  addEventListener(name, () => {
    paper = now;
    applyTheme();
  });
