// Main module of the page: sign-in, navigation between views, and the theme.

import { dropToken, read, token } from "./api.js";
import { announce, fill, h, notice, refused } from "./dom.js";
import { agentsView } from "./agents.js";
import { apiView } from "./api_docs.js";
import { compareView } from "./compare.js";
import { historyView } from "./history.js";
import { launchView } from "./launch.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { schedulesView } from "./schedules.js";
import { signInView } from "./signin.js";
import { studiesView, studyView } from "./studies.js";
import { applyTheme, themeSwitch } from "./theme.js";

const VIEWS = [
  [/^#\/runs$/, runsView, "Runs"],
  [/^#\/run\/([a-z0-9-]+)(?:\/burst\/(\d+))?$/, runView, "Run"],
  [/^#\/launch(?:\/([a-z0-9.-]+))?$/, launchView, "Launch"],
  [/^#\/compare(?:\?(.*))?$/, compareView, "Compare"],
  [/^#\/schedules$/, schedulesView, "Schedules"],
  [/^#\/studies$/, studiesView, "Studies"],
  [/^#\/study\/([a-z0-9-]+)$/, studyView, "Study"],
  [/^#\/history$/, historyView, "History"],
  [/^#\/agents$/, agentsView, "Agents"],
  [/^#\/api$/, apiView, "API"],
  [/^#\/signin$/, signInView, "Sign in"],
];

// Time after which the page tries again if the coordinator does not respond.
const AGAIN_MS = 5000;
const main = document.getElementById("main");
let me = null;
let close = null;
let shown = 0;
// The view to open after the user has signed in.
let wanted = null;

const isOperator = () => me?.role === "operator";

const needsToken = document.querySelector("meta[name=broadside-needs-token]").content === "yes";

async function identify() {
  if (needsToken && !token()) return { status: 401 };
  try {
    me = await read("/v1/me");
    return null;
  } catch (problem) {
    me = null;
    return problem;
  }
}

function showWho() {
  const who = document.getElementById("who");
  const parts = [themeSwitch()];
  if (me) {
    const title = me.signed_in
      ? `Signed in as ${me.name}: ${me.role}`
      : "This coordinator has no sign-in and accepts only local connections";
    const name = me.signed_in ? [h("span.name", `${me.name}, `), me.role] : "no sign-in";
    parts.unshift(h("span.role", { title }, name));
    if (me.signed_in) {
      parts.push(h("button.plain", { type: "button", onclick: signOut }, "Sign out"));
    }
  }
  fill(who, parts);
  for (const link of document.querySelectorAll("#nav a")) {
    link.hidden = !me || (link.dataset.needs === "operator" && !isOperator());
    const here =
      location.hash.startsWith(link.getAttribute("href")) ||
      (link.hash === "#/runs" && location.hash.startsWith("#/run/")) ||
      (link.hash === "#/studies" && location.hash.startsWith("#/study/"));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function signOut() {
  dropToken();
  me = null;
  location.hash = "#/signin";
  announce("Signed out");
}

async function show() {
  const number = ++shown;
  close?.();
  close = null;
  if (!location.hash) {
    location.replace("#/runs");
    return;
  }
  if (!me && location.hash !== "#/signin") {
    const problem = await identify();
    if (number !== shown) return;
    if (problem?.status === 401) {
      wanted = location.hash;
      location.replace("#/signin");
      return;
    }
    if (problem) {
      showWho();
      fill(main, refused(problem, h("button", { type: "button", onclick: show }, "Try again")));
      setTimeout(() => number === shown && show(), AGAIN_MS);
      return;
    }
  }
  showWho();
  const [pattern, view, title] = VIEWS.find(([each]) => each.test(location.hash)) ?? [];
  if (!view) {
    fill(main, notice("bad", "No such view", "Select one above."));
    return;
  }
  const arguments_ = pattern.exec(location.hash).slice(1);
  document.title = `${["Run", "Study"].includes(title) ? arguments_[0] : title} - Broadside`;
  main.replaceChildren();
  close =
    view(main, arguments_, {
      operator: isOperator(),
      async signedIn() {
        const problem = await identify();
        if (problem) return problem;
        location.hash = wanted ?? "#/runs";
        wanted = null;
        announce(`Signed in as ${me.name}, ${me.role}`);
        return null;
      },
    }) ?? null;
  scrollTo(0, 0);
  if (number > 1) main.focus({ preventScroll: true });
}

addEventListener("hashchange", show);
addEventListener("signed-out", () => {
  if (!token() && !me) return;
  dropToken();
  me = null;
  if (location.hash !== "#/signin") {
    wanted = location.hash;
    location.hash = "#/signin";
  }
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.documentElement.dataset.started = "";
applyTheme();
show();
