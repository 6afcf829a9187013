// The report's own charts, drawn by plotly from figures that the coordinator defines once.

import { read, readIfThere } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { known } from "./format.js";
import { printing, theme } from "./theme.js";
import { RECEIVED } from "./words.js";

const base = document.querySelector("meta[name=broadside-base]").content;
const mark = document.querySelector("meta[name=broadside-plotly]").content;
const there = mark !== "no";
const NARROW = 600; // px, in which an axis' title takes two lines
let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    document.head.append(h("meta", { id: mark })); // in place of its inline style for maps
    const script = h("script", { src: `${base}/plotly.min.js` });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js did not load; reload the page"));
    document.head.append(script);
  });
  return loading;
}

const notInstalled = () =>
  notice(
    "note",
    "Not installed",
    "These charts need plotly where the coordinator runs: its extra `reports`. All above works without.",
  );

const titleOf = ({ title, figure }) => figure.layout.title?.text?.replace(/<[^>]+>/g, " ") ?? title;

async function plot(Plotly, parent, chart, heading) {
  const canvas = h("div.plotly", {
    role: "img",
    "aria-label": `${chart.title}. ${chart.says}`,
  });
  parent.append(
    h(
      "figure.chart",
      h("figcaption", h(heading, titleOf(chart))),
      canvas,
      h("p.readout", chart.says),
    ),
  );
  const { title, width, height, ...layout } = chart.figure.layout; // words stand above, and wrap
  const across = layout.xaxis.title.text;
  const text = parent.clientWidth < NARROW ? across.replace(" (", "<br>(") : across;
  const fitted = {
    ...layout,
    xaxis: { ...layout.xaxis, title: { ...layout.xaxis.title, text } },
    margin: { ...layout.margin, t: 30, r: 16 },
    height: Math.max(300, height ?? 0),
    autosize: true,
  };
  await Plotly.newPlot(canvas, chart.figure.data, fitted, {
    responsive: true,
    displayModeBar: false,
  });
}

// The one chart at a path, in place of what the element shows; without figures, as it was.
export async function drawOne(element, path) {
  if (!there) {
    fill(element, notInstalled());
    return;
  }
  const [Plotly, chart] = await Promise.all([plotly(), readIfThere(`${path}?theme=${theme()}`)]);
  if (!chart) return;
  element.replaceChildren();
  await plot(Plotly, element, chart, "h2");
}

// Charts that this run, or the burst that is shown, cannot have.
function without({ bursts, reconciliation }, data) {
  const lacks = {
    bursts: bursts.length < 2,
    trend: bursts.length < 3,
    residuals: !reconciliation || bursts.length < 2,
    reconciliation: !reconciliation,
    latency: !bursts.some(({ latency }) => latency),
    throughput: !data.has("fleet_bits_per_second"),
    heatmap: !data.hasPairs || !data.knowsCells,
    pairs: !known(bursts[data.burstIndex]?.[RECEIVED]),
    band: !data.has("pair_p50_bits_per_second"),
    starts: !bursts[data.burstIndex] || bursts[data.burstIndex].start_error_max_s === null,
    cpu: !data.has("client_cpu_ratio") && !data.has("server_cpu_ratio"),
    rtt: !data.has("rtt_mean_s"),
    retransmits: !data.has("retransmits_count"),
  };
  return Object.keys(lacks).filter((name) => lacks[name]);
}

// An import's page has little else, so there they are open.
export function reportFigures(runId, burstIndex, { status, summary, data }) {
  const body = h("div.figures-grid");
  const element = h(
    "details.card.figures-of-report",
    { open: Boolean(status.imported), ontoggle: () => element.open && draw() },
    h("summary", h("h2", "Charts of the report"), h("span.quiet", "as they are printed")),
    body,
  );
  let drawn = null;

  async function draw() {
    const key = `${theme()}`;
    if (drawn === key) return;
    drawn = key;
    if (!there) {
      fill(body, notInstalled());
      return;
    }
    fill(body, h("p.quiet", "Drawing."));
    try {
      const [Plotly, list] = await Promise.all([plotly(), read(`/v1/runs/${runId}/charts`)]);
      const absent = without(summary, data);
      const entries = list.charts
        .filter(
          ({ name, kind }) => (kind === "burst" || burstIndex === null) && !absent.includes(name),
        )
        .toSorted((a, b) => (b.kind === "run") - (a.kind === "run"));
      body.replaceChildren();
      for (const entry of entries) {
        const at = entry.kind === "burst" ? `&burst=${data.burstIndex}` : "";
        const chart = await readIfThere(
          `/v1/runs/${runId}/charts/${entry.name}?theme=${theme()}${at}`,
        ).catch(() => null);
        if (drawn !== key) return;
        if (!chart) continue;
        await plot(Plotly, body, chart, "h3");
      }
      if (!body.children.length)
        fill(body, h("p.quiet", "Nothing was measured, so there is nothing to draw."));
    } catch (error) {
      drawn = null;
      fill(body, notice("bad", "No charts", error.message));
    }
  }

  const redraw = () => !printing() && element.open && draw(); // paper waits for nobody
  addEventListener("theme", redraw);
  return { element, close: () => removeEventListener("theme", redraw) };
}
