// What a run costs, as lines of text.

import { h, notice } from "./dom.js";
import { known } from "./format.js";

// `price` is an estimate (with a bill) or a meter (spent, and projected at the run's end).
export function priceLines(price) {
  if (!price)
    return [h("p", { class: "quiet" }, "Not known: this coordinator keeps no price table.")];
  const bill = price.spent ?? price.bill;
  const usd = (value) =>
    known(value) ? `$${value < 1000 ? value.toFixed(2) : value.toFixed(0)}` : "unknown";
  const wide =
    known(bill.total_low_usd) &&
    known(bill.total_high_usd) &&
    usd(bill.total_low_usd) !== usd(bill.total_high_usd);
  const more = price.projected && price.projected.total_usd !== bill.total_usd;
  const end = more ? `${usd(price.projected.total_usd)} at its end` : null;
  const left = known(price.budget_left_usd)
    ? `${usd(price.budget_left_usd)} of ${usd(price.budget_usd)} left`
    : null;
  return [
    h(
      "p",
      { class: "big-price" },
      h("strong", {}, usd(bill.total_usd)),
      h(
        "span",
        { class: "quiet" },
        price.charged ? (price.spent ? "so far" : "estimated") : "would be charged on Azure",
      ),
    ),
    end || left ? h("p", { class: "quiet" }, [end, left].filter(Boolean).join("; ")) : null,
    wide
      ? h(
          "p",
          { class: "quiet" },
          `Between ${usd(bill.total_low_usd)} and ${usd(bill.total_high_usd)}.`,
        )
      : null,
    price.not_charged_why
      ? h("p", { class: "quiet" }, `Not charged: ${price.not_charged_why}.`)
      : null,
    price.stopped ? notice("bad", "Stopped by its budget", price.stopped) : null,
    bill.lines.length
      ? h(
          "ul",
          { class: "lines" },
          bill.lines.map((line) =>
            h("li", {}, h("span", {}, line.item), h("span", { class: "number" }, usd(line.usd))),
          ),
        )
      : null,
    bill.unknown?.length
      ? h("p", { class: "quiet" }, `Not in the sum: ${bill.unknown.join(", ")}.`)
      : null,
    h("p", { class: "quiet" }, `Prices of ${price.prices_as_of}, at real scale.`),
  ];
}
