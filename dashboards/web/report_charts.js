// The charts of the report, as SVG drawings from the coordinator.

import { ask, read } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { known } from "./format.js";
import { printing, theme } from "./theme.js";
import { RECEIVED } from "./words.js";

const NOT_AVAILABLE = [404, 405, 409];

// Append the drawing of a chart. An <img> runs no scripts and loads nothing else.
async function draw(parent, chart, path, heading) {
  const width = Math.min(1600, Math.max(300, Math.round(parent.clientWidth)));
  const query = `${path.includes("?") ? "&" : "?"}theme=${theme()}&width=${width}`;
  const answer = await ask(path + query, { more: { Accept: "image/svg+xml" } });
  const image = h("img.drawing", {
    src: URL.createObjectURL(await answer.blob()),
    alt: `${chart.title}. ${chart.description}`,
  });
  image.onload = () => URL.revokeObjectURL(image.src);
  parent.append(
    h("figure.chart", h(`${heading}.unseen`, chart.title), image, h("p.readout", chart.description)),
  );
}

// Replace the content of an element with a chart, if it is available.
export async function drawOne(element, path) {
  try {
    const chart = await read(path);
    element.replaceChildren();
    await draw(element, chart, path, "h2");
  } catch (problem) {
    if (!NOT_AVAILABLE.includes(problem.status)) throw problem;
  }
}

// Names of charts that this run, or the selected burst, has no data for.
function unavailable({ bursts, reconciliation }, data) {
  const measures = bursts[data.burst - 1]?.measures ?? [];
  const isCounted = measures.some(({ name }) => name === "attempted_count");
  const isMissing = {
    bursts: bursts.length < 2,
    residuals: !reconciliation || bursts.length < 2,
    reconciliation: !reconciliation,
    latency: !bursts.some(({ latency }) => latency),
    throughput: !data.has("fleet_bits_per_second"),
    heatmap: !data.hasPairs || !data.knowsCells,
    pairs: !known(bursts[data.burst - 1]?.[RECEIVED]),
    band: !data.has("pair_p50_bits_per_second"),
    starts: !bursts[data.burst - 1] || bursts[data.burst - 1].start_error_max_s === null,
    parts: !bursts[data.burst - 1]?.parts.length,
    device: !bursts[data.burst - 1]?.device,
    cpu: !data.has("client_cpu_ratio") && !data.has("server_cpu_ratio"),
    rtt: !data.has("rtt_mean_s"),
    retransmits: !data.has("retransmits_count"),
    connections: !isCounted,
    "connection-times": !isCounted,
  };
  return Object.keys(isMissing).filter((name) => isMissing[name]);
}

// The card is open for an imported run, because its page has little else.
export function reportCharts(runId, burst, { status, summary, data }) {
  const body = h("div.figures-grid");
  const element = h(
    "details.card.figures-of-report",
    { open: Boolean(status.imported), ontoggle: () => element.open && drawAll() },
    h("summary", h("h2", "Charts of the report"), h("span.quiet", "as printed")),
    body,
  );
  let drawnTheme = null;

  async function drawAll() {
    const current = theme();
    if (drawnTheme === current) return;
    drawnTheme = current;
    fill(body, h("p.quiet", "Loading."));
    try {
      const { charts } = await read(`/v1/runs/${runId}/charts`);
      const missing = unavailable(summary, data);
      const entries = charts
        .filter(
          ({ name, kind }) => (kind === "burst" || burst === null) && !missing.includes(name),
        )
        .toSorted((a, b) => (b.kind === "run") - (a.kind === "run"));
      body.replaceChildren();
      for (const entry of entries) {
        const query = entry.kind === "burst" ? `?burst=${data.burst}` : "";
        if (drawnTheme !== current) return;
        await draw(body, entry, `/v1/runs/${runId}/charts/${entry.name}${query}`, "h3").catch(
          (problem) => {
            if (!NOT_AVAILABLE.includes(problem.status)) throw problem;
          },
        );
      }
      if (!body.children.length)
        fill(body, h("p.quiet", "There are no charts, because nothing was measured."));
    } catch (error) {
      drawnTheme = null;
      fill(body, notice("bad", "Charts not available", error.message));
    }
  }

  const redraw = () => !printing() && element.open && drawAll();
  addEventListener("theme", redraw);
  return { element, close: () => removeEventListener("theme", redraw) };
}
