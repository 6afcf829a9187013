// Asks once more, and names what is about to be stopped and what it has cost.

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
    "The trial under way is aborted, and a device that the study switches goes back to its state of rest. What the trials before it showed is kept.",
  );
}

// Resolves to the reason; to null when it is to go on.
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
    // Enter in the reason must not abort: the first button of the form is the one that keeps it.
    document.body.append(dialog);
    dialog.showModal();
  });
}
