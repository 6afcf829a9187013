// Page for the HTML report of a run or a study. The report is in a frame that is not allowed to run
// any scripts or to load other resources.

import { ask } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { applyTheme } from "./theme.js";

document.documentElement.dataset.started = "";
applyTheme();
const [, ofStudy, id] = location.hash.match(/^#(study\/)?([a-z0-9-]+)$/) ?? [];
const what = ofStudy ? "study" : "run";
const main = document.getElementById("main");
if (id) {
  document.getElementById("back").href = `/#/${what}/${id}`;
  document.title = `Report of ${id} - Broadside`;
  show();
} else {
  fill(main, notice("bad", "No run selected", "Open the report from the page of its run."));
}

async function show() {
  try {
    const answer = await ask(`/v1/${ofStudy ? "studies" : "runs"}/${id}/report?format=html`);
    const text = await answer.text();
    const save = document.getElementById("save");
    save.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
    save.download = `broadside-${id}.html`;
    save.hidden = false;
    const title = `Report of ${what} ${id}`;
    fill(main, h("h1.unseen", title), h("iframe", { title, sandbox: "", srcdoc: text }));
  } catch (problem) {
    fill(main, notice("bad", "No report", problem.message));
  }
}
