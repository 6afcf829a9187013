// Text for the cost of a run.

import { h, notice } from "./dom.js";
import { dollars, known } from "./format.js";

// The price may be an estimate (with a bill) or the cost until now (with a projection to the end of
// the run).
export function priceLines(price) {
  if (!price) return [h("p.quiet", "Unknown: no price table is configured.")];
  const bill = price.spent ?? price.bill;
  const wide =
    known(bill.total_low_usd) &&
    known(bill.total_high_usd) &&
    dollars(bill.total_low_usd) !== dollars(bill.total_high_usd);
  const more = price.projected && price.projected.total_usd !== bill.total_usd;
  const end = more ? `${dollars(price.projected.total_usd)} projected` : null;
  const left = known(price.budget_left_usd)
    ? `${dollars(price.budget_left_usd)} of ${dollars(price.budget_usd)} left`
    : null;
  return [
    h(
      "p.big-price",
      h("strong", dollars(bill.total_usd)),
      h(
        "span.quiet",
        price.charged ? (price.spent ? "until now" : "estimated") : "on Azure",
      ),
    ),
    end || left ? h("p.quiet", [end, left].filter(Boolean).join("; ")) : null,
    wide
      ? h("p.quiet", `Range: ${dollars(bill.total_low_usd)} to ${dollars(bill.total_high_usd)}.`)
      : null,
    price.not_charged_why ? h("p.quiet", `Not charged: ${price.not_charged_why}.`) : null,
    price.stopped ? notice("bad", "Stopped: budget exceeded", price.stopped) : null,
    bill.lines.length
      ? h(
          "ul.lines",
          bill.lines.map((line) =>
            h("li", h("span", line.item), h("span.number", dollars(line.usd))),
          ),
        )
      : null,
    bill.unknown?.length ? h("p.quiet", `Not included: ${bill.unknown.join(", ")}.`) : null,
    h("p.quiet", `Prices of ${price.prices_as_of}, at real scale.`),
  ];
}
