// Dialogs to confirm that a run or a study should be stopped. You can see the cost until now.

import { h } from "./dom.js";
import { dollars, known } from "./format.js";

export function abortRunDialog(runId, status, price) {
  const usd = price?.spent?.total_usd;
  const cost =
    price?.charged === false
      ? "There is no cost: the run is not charged."
      : known(usd)
        ? `It has cost about ${dollars(usd)} so far.`
        : "Its cost so far is unknown.";
  const left = status.bursts_count - status.bursts_over_count;
  return abortDialog(
    "run",
    status.scenario,
    runId,
    `Agents stop within seconds; ${left === 1 ? "the burst" : `${left} bursts`} to come or in progress ${left === 1 ? "is" : "are"} cancelled. Measured data is kept, and the verdict will not be a pass. ${cost}`,
  );
}

export function abortStudyDialog(studyId, name) {
  return abortDialog(
    "study",
    name,
    studyId,
    "The current trial is aborted, and a device that the study switches returns to its initial state. Results of earlier trials are kept.",
  );
}

// Return a promise for the reason. It resolves to null if the user keeps the run.
function abortDialog(kind, name, id, means) {
  const reason = h("input", {
    id: "reason",
    maxlength: "500",
    placeholder: "no longer needed",
    autocomplete: "off",
  });
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      {
        "aria-labelledby": "abort-title",
        onclose: () => {
          dialog.remove();
          resolve(
            dialog.returnValue === "abort" ? reason.value.trim() || "aborted on the page" : null,
          );
        },
      },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "abort-title" }, `Abort ${name}?`),
        h("p.mono", id),
        h("p", means),
        h("label", { for: "reason" }, `Reason (stored with the ${kind})`),
        reason,
        h(
          "div.actions",
          h("button.primary", { value: "keep", autofocus: true }, "Keep it running"),
          h("button.danger", { value: "abort" }, `Abort the ${kind}`),
        ),
      ),
    );
    // The Enter key must not abort, so the first button of the form is the one that cancels the
    // dialog.
    document.body.append(dialog);
    dialog.showModal();
  });
}
