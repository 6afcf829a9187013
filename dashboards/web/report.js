// Shows a run's HTML report in a frame that may run nothing and reach nothing.

import { ask } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { applyTheme } from "./theme.js";

applyTheme();
const runId = location.hash.slice(1);
const main = document.getElementById("main");
if (/^[a-z0-9-]+$/.test(runId)) {
  document.getElementById("back").href = `/#/run/${runId}`;
  document.title = `Report of ${runId} - Broadside`;
  show();
} else {
  fill(main, notice("bad", "No run named", "Open a report from its run."));
}

async function show() {
  try {
    const answer = await ask(`/v1/runs/${runId}/report?format=html`);
    const text = await answer.text();
    const save = document.getElementById("save");
    save.href = URL.createObjectURL(new Blob([text], { type: "text/html" }));
    save.download = `broadside-${runId}.html`;
    save.hidden = false;
    fill(main, h("iframe", { title: `Report of run ${runId}`, sandbox: "", srcdoc: text }));
  } catch (problem) {
    const why =
      problem.status === 404 && !problem.message.includes(runId)
        ? "This coordinator serves no reports; use `broadside report`."
        : problem.message;
    fill(main, notice("bad", "No report", why));
  }
}
