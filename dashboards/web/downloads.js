// Buttons to download the data of a run. The token is sent in a header, so we cannot use a link.

import { ask } from "./api.js";
import { announce, h, refused } from "./dom.js";

const FILES = [
  ["Workbook (xlsx)", "export?format=xlsx", "xlsx"],
  ["Bursts (csv)", "export?format=csv&table=bursts", "csv"],
  ["Pairs (csv)", "export?format=csv&table=pairs", "csv"],
  ["Seconds (Parquet)", "export?format=parquet&table=seconds", "parquet"],
  ["Report (HTML)", "report?format=html", "html"],
];

export function downloads(runId) {
  const element = h(
    "details.downloads",
    h("summary.button", "Download"),
    h(
      "ul",
      FILES.map(([name, path, ending]) => {
        const button = h("button.plain", { type: "button", onclick: save }, name);
        async function save() {
          button.disabled = true;
          try {
            const answer = await ask(`/v1/runs/${runId}/${path}`);
            const address = URL.createObjectURL(await answer.blob());
            h("a", { href: address, download: `${runId}.${ending}` }).click();
            setTimeout(() => URL.revokeObjectURL(address), 60_000);
            announce(`${name} saved`);
            element.open = false;
          } catch (problem) {
            button.after(refused(problem));
          }
          button.disabled = false;
        }
        return h("li", button);
      }),
    ),
  );
  return element;
}
