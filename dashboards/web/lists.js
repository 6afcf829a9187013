// Lists of findings, and of pairs for which there is no measurement.

import { h, prose } from "./dom.js";
import { counted } from "./format.js";

const NAMED_MAX = 200;

export function findingItems(findings) {
  return findings.map((each) =>
    h(
      "li",
      { class: each.severity },
      h("span.severity", { title: each.id }, each.severity),
      h("p", prose(each.sentence)),
      each.next_step ? h("p.quiet", `Next: ${each.next_step}.`) : null,
    ),
  );
}

export function troubleList(pairs, open) {
  const more = pairs.length - NAMED_MAX;
  const item = ({ pair, state, reason }) =>
    h("li", h("strong", pair), ` ${state}`, reason ? `: ${reason}` : "");
  return h(
    "details.alternative",
    { open },
    h("summary", `${counted(pairs.length, "pair")} not measured`),
    h("ul.trouble", pairs.slice(0, NAMED_MAX).map(item)),
    more > 0 ? h("p.quiet", `and ${more} more; see the report`) : null,
  );
}
