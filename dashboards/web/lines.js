// Chart of the seconds of a burst, or of runs, on a canvas. It takes a few milliseconds to draw
// 2,000 points. Missing data is a gap. If there are more points than pixels, the range of the values
// is drawn. All charts in a view use the same cursor to select a second.

import { colours, fit, secondLabel, secondTicks, stroke, ticks } from "./canvas.js";
import { FIGURE, h, say, table } from "./dom.js";
import { digits, known, niceAbove } from "./format.js";

const MARGIN = { left: 52, right: 12, top: 10, bottom: 24 };
const ROWS_IN_TABLE = 120;
// If there are more points per pixel than this, draw ranges instead of points.
const MOST_PER_PIXEL = 1.5;
const TARGET_DASH = [7, 4];
// Width in pixels to use for a second that has no data before or after it.
const LONE_WIDTH = 4;
// Height in pixels of a lane with its name, and of the name.
const LANE_HEIGHT = 50;
const NAME_HEIGHT = 20;
const SECONDS = {
  row: "Second",
  name: (second) => String(second + 1),
  ticks: secondTicks,
  label: secondLabel,
};

// The format of a series is { name, colour, dash, width, points | bins | low and high }. A series
// with `dots`, the colours of its points, has no line. Without a colour, low and high are bars. If
// `lanes` is set, each series has its own axis and is an area.
export class LineChart {
  constructor({ title, height = 190, unit, format, cursor, minTop = 0, axis = SECONDS, lanes }) {
    // True if no more data will be received. Until then, we can show a target without data.
    this.over = false;
    this.silence = "No data yet";
    Object.assign(this, { title, height, unit, format, cursor, minTop, axis, lanes });
    this.total = 1;
    this.series = [];
    this.visible = true;
    this.target = null;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": title,
      onkeydown: (event) => cursor.key(event, this.total),
      onpointermove: (event) => cursor.set(this.#secondAt(event)),
      onpointerleave: () => cursor.set(null),
      onblur: () => cursor.set(null),
    });
    // Set the height now, because the chart might not be visible yet.
    this.canvas.style.height = `${height}px`;
    this.legend = h("ul.legend");
    this.readout = h("p.readout");
    this.rows = h("div");
    this.details = h(
      "details.alternative",
      { ontoggle: () => this.#fillTable() },
      h("summary", "As a table"),
      this.rows,
    );
    this.unitLabel = h("span.unit", unit);
    this.element = h(
      "figure.chart",
      h("figcaption", h("h3", title), this.unitLabel, this.legend),
      h("div.plot", this.canvas),
      this.readout,
      this.details,
    );
  }

  // Draw a chart when it becomes visible. The text for screen readers is always updated.
  observe(observer) {
    observer.observe(this.canvas);
    this.canvas.addEventListener("sight", (event) => {
      this.visible = event.detail;
      if (this.visible) this.draw();
    });
  }

  // Set the data and draw it. The first argument has the state of the burst.
  show({ total, over, silence }, update) {
    Object.assign(this, { total, over, silence }, update);
    if (this.lanes) this.height = MARGIN.top + MARGIN.bottom + LANE_HEIGHT * this.series.length;
    this.draw();
  }

  #width() {
    return Math.max(120, this.canvas.parentElement?.clientWidth || 600);
  }

  #secondAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const inside =
      (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const second = Math.floor(inside * this.total);
    return second >= 0 && second < this.total ? second : null;
  }

  // True if the chart has data in addition to the target.
  get hasData() {
    const values = ({ points, low, bins }) => points ?? low ?? bins.map((bin) => bin.value);
    return this.series.some((each) => values(each).some(known));
  }

  draw() {
    this.element.hidden = !this.hasData && (this.over || !this.target);
    if (this.visible && !this.element.hidden) this.#paint();
    this.#read();
    if (this.details.open) this.#fillTable();
  }

  #paint() {
    const width = this.#width();
    const [context, ratio] = fit(this.canvas, width, this.height);
    const palette = colours();
    const box = {
      left: MARGIN.left,
      right: width - MARGIN.right,
      top: MARGIN.top,
      bottom: this.height - MARGIN.bottom,
    };
    const x = (second) => box.left + (second / (this.total || 1)) * (box.right - box.left);
    context.clearRect(0, 0, width, this.height);
    context.font = `12px ${palette.font}`;
    this.#legend(palette);
    this.#xAxis(context, palette, box, x);
    if (!this.lanes) this.#plot(context, palette, box, x, this.series);
    else
      this.series.forEach((each, place) => {
        const bottom = box.top + LANE_HEIGHT * (place + 1);
        const top = bottom - LANE_HEIGHT + NAME_HEIGHT;
        context.textAlign = "left";
        context.textBaseline = "bottom";
        context.fillStyle = palette.ink;
        context.fillText(each.name, box.left, top - 2);
        this.#plot(context, palette, { ...box, top, bottom }, x, [each]);
      });
    this.#marks(context, palette, box, x);
    const at = this.cursor.second;
    if (at !== null && at < this.total) {
      const look = { colour: palette.quiet, width: 1 / ratio + 0.5, dash: [2, 2] };
      stroke(context, [x(at + 0.5), box.top], [x(at + 0.5), box.bottom], look);
    }
  }

  // Draw series that have the same axis.
  #plot(context, palette, box, x, series) {
    let top = Math.max(this.minTop, this.target?.value ?? 0);
    for (const each of series) {
      for (const value of each.points ?? []) if (value > top) top = value;
      for (const value of each.high ?? []) if (value > top) top = value;
      for (const bin of each.bins ?? []) if (bin.value > top) top = bin.value;
    }
    top = niceAbove(top * 1.06);
    const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
    this.#yAxis(context, palette, box, y, top);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top - 4, box.right - box.left, box.bottom - box.top + 8);
    context.clip();
    for (const each of series) this.#series(context, palette, each, x, y);
    context.restore();
    if (this.target) this.#target(context, palette, box, y);
  }

  #yAxis(context, palette, box, y, top) {
    context.fillStyle = palette.quiet;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of ticks(0, top, Math.max(2, (box.bottom - box.top) / 36))) {
      const at = Math.round(y(tick)) + 0.5;
      stroke(context, [box.left, at], [box.right, at], { colour: palette.faint });
      context.fillText(tickLabel(tick), box.left - 8, at);
    }
  }

  #xAxis(context, palette, box, x) {
    context.fillStyle = palette.quiet;
    context.textBaseline = "top";
    for (const tick of this.axis.ticks(this.total, (box.right - box.left) / 64)) {
      const at = x(tick);
      context.textAlign = at < box.left + 4 ? "left" : at > box.right - 18 ? "right" : "center";
      context.fillText(this.axis.label(tick), at, box.bottom + 7);
    }
  }

  #series(context, palette, each, x, y) {
    const wide = x(1) - x(0);
    context.fillStyle = palette[each.colour];
    if (each.dots) return dots(context, palette, each, x, y);
    if (this.lanes) return area(context, each.bins, x, y);
    if (each.low && !each.colour) return bars(context, palette, each, x, y);
    if (each.low) {
      for (const run of stretches(each.low, each.high, Math.ceil(1 / wide)))
        band(context, run, x, y);
      return;
    }
    context.strokeStyle = palette[each.colour];
    context.lineWidth = each.width ?? 2;
    context.lineJoin = "round";
    context.setLineDash(each.dash ?? []);
    context.beginPath();
    if (each.bins) steps(context, each.bins, x, y);
    else
      for (const run of stretches(each.points, each.points, Math.ceil(1 / (wide * MOST_PER_PIXEL))))
        line(context, run, x, y);
    context.stroke();
    context.setLineDash([]);
  }

  #target(context, palette, box, y) {
    const at = Math.round(y(this.target.value)) + 0.5;
    const look = { colour: palette.target, width: 1.5, dash: TARGET_DASH };
    stroke(context, [box.left, at], [box.right, at], look);
  }

  // Mark the seconds for which the data of some pairs is missing.
  #marks(context, palette, box, x) {
    if (!this.thin?.length) return;
    context.fillStyle = palette.missing;
    for (const second of this.thin) {
      const [from, to] = [x(second), x(second + 1)];
      context.fillRect(from, box.bottom - 3, Math.max(1.5, to - from - 0.5), 4);
    }
  }

  #legend(palette) {
    const named = this.series.filter((each) => each.colour && !this.lanes);
    const entries = named.map((each) => ({ ...each, of: each.low ? "band" : "line" }));
    if (this.target)
      entries.push({ name: this.target.name, colour: "target", dash: TARGET_DASH, of: "line" });
    if (this.thin?.length)
      entries.push({ name: "some pairs without data", colour: "missing", of: "mark" });
    const key = JSON.stringify([entries.map((each) => [each.name, each.of]), palette.ink]);
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren(
      ...entries.map((each) => {
        const swatch = h("canvas.swatch", { "aria-hidden": "true" });
        const [context] = fit(swatch, 26, 12);
        context.fillStyle = palette[each.colour];
        const look = { colour: palette[each.colour], width: each.width ?? 2, dash: each.dash };
        if (each.of === "band") context.fillRect(0, 2, 26, 9);
        else if (each.of === "mark") context.fillRect(0, 8, 26, 4);
        else stroke(context, [0, 6], [26, 6], look);
        return h("li", swatch, each.name);
      }),
    );
  }

  #values(second) {
    const at = second + 0.5;
    return this.series.map((each) => {
      if (each.low) return [each.name, each.low[second] ?? null, each.high[second] ?? null];
      if (each.bins)
        return [
          each.name,
          each.bins.find((bin) => bin.from <= at && at < bin.before)?.value ?? null,
        ];
      return [each.name, each.points[second] ?? null];
    });
  }

  #text(second) {
    // A counter can report a second later than the fleet.
    const missing = this.over ? "missing" : "not yet known";
    const figure = (value) => (known(value) ? this.format(value) : missing);
    return this.#values(second)
      .map(
        ([name, ...values]) =>
          `${name} ${known(values[0]) ? values.map(figure).join(" to ") : missing}`,
      )
      .join(", ");
  }

  #newest() {
    const first = this.series.find((each) => each.points);
    if (!first) return this.hasData ? this.total - 1 : null;
    const newest = first.points.slice(0, this.total).findLastIndex(known);
    return newest < 0 ? null : newest;
  }

  #read() {
    const at = this.cursor.second ?? this.#newest();
    const text = at === null ? this.silence : `${this.axis.row} ${this.axis.name(at)}: ${this.#text(at)}`;
    say(this.readout, text);
    const label = `${this.title}, ${this.unit}. ${text}`;
    if (this.canvas.getAttribute("aria-label") !== label)
      this.canvas.setAttribute("aria-label", label);
  }

  #fillTable() {
    if (!this.details.open) return;
    const last = this.#newest();
    if (last === null) {
      this.rows.replaceChildren(h("p.quiet", `${this.silence}.`));
      return;
    }
    const from = Math.max(0, last - ROWS_IN_TABLE + 1);
    const names = this.series.flatMap((each) =>
      each.low ? [`${each.name}, low`, `${each.name}, high`] : [each.name],
    );
    const columns = [this.axis.row, ...names].map((name, at) => [name, (row) => row[at], FIGURE]);
    const rows = [];
    for (let second = last; second >= from; second--) {
      const values = this.#values(second).flatMap(([, ...each]) => each);
      const texts = values.map((value) => (known(value) ? digits(value) : "missing"));
      rows.push([this.axis.name(second), ...texts]);
    }
    const more = from > 0 ? ` The latest ${ROWS_IN_TABLE} seconds. The export contains all.` : "";
    this.rows.replaceChildren(
      h("p.quiet", `In ${this.unit}, by ${this.axis.row.toLowerCase()}.${more}`),
      table(this.title, columns, rows, { dense: true }),
    );
  }
}

// Split the data into parts of at most `size` seconds with the form { from, before, low, high }.
// A part does not include a gap. Use the low and high values to draw it, so that you can see a
// short drop of the rate.
function* stretches(low, high, size) {
  let run = [];
  for (let place = 0; place < low.length;) {
    const part = { from: place, before: place, low: Infinity, high: -Infinity };
    const stop = Math.min(low.length, place - (place % size) + size);
    for (; part.before < stop && known(low[part.before]); part.before++) {
      part.low = Math.min(part.low, low[part.before]);
      part.high = Math.max(part.high, high[part.before]);
    }
    if (part.before > place) run.push(part);
    place = part.before;
    if (place < stop) {
      if (run.length) yield run;
      run = [];
      place++;
    }
  }
  if (run.length) yield run;
}

function line(context, run, x, y) {
  run.forEach((part, i) => {
    const at = x((part.from + part.before) / 2);
    const alone = run.length === 1 ? LONE_WIDTH / 2 : 0;
    if (i) context.lineTo(at, y(part.low));
    else context.moveTo(at - alone, y(part.low));
    if (part.high > part.low) context.lineTo(at, y(part.high));
    if (alone) context.lineTo(at + alone, y(part.high));
  });
}

function band(context, run, x, y) {
  const places = run.map((part) => x((part.from + part.before) / 2));
  const [left, right] = [x(run[0].from), x(run.at(-1).before)];
  context.beginPath();
  context.moveTo(left, y(run[0].high));
  run.forEach((part, i) => context.lineTo(places[i], y(part.high)));
  context.lineTo(right, y(run.at(-1).high));
  context.lineTo(right, y(run.at(-1).low));
  run.forEach((_, i) => context.lineTo(places.at(-1 - i), y(run.at(-1 - i).low)));
  context.lineTo(left, y(run[0].low));
  context.closePath();
  context.fill();
}

function steps(context, bins, x, y) {
  let previous = null;
  for (const bin of bins) {
    if (!known(bin.value)) {
      previous = null;
      continue;
    }
    if (previous !== null && Math.abs(previous - bin.from) < 0.5)
      context.lineTo(x(bin.from), y(bin.value));
    else context.moveTo(x(bin.from), y(bin.value));
    context.lineTo(x(bin.before), y(bin.value));
    previous = bin.before;
  }
}

function area(context, bins, x, y) {
  for (const { from, before, value } of bins) {
    const [left, right] = [from, before].map((second) => Math.round(x(second)));
    if (known(value)) context.fillRect(left, y(value), right - left, y(0) - y(value));
  }
}

// Draw a line from each low to its high value, with a bar at both ends.
function bars(context, palette, { low, high }, x, y) {
  const look = { colour: palette.ink, width: 1.5 };
  low.forEach((value, place) => {
    if (!known(value)) return;
    const at = x(place + 0.5);
    const ends = [y(value), y(high[place])];
    stroke(context, [at, ends[0]], [at, ends[1]], look);
    for (const end of ends) stroke(context, [at - 6, end], [at + 6, end], look);
  });
}

function dots(context, palette, { points, dots: looks }, x, y) {
  points.forEach((value, place) => {
    context.fillStyle = palette[looks[place]];
    context.beginPath();
    context.arc(x(place + 0.5), y(value), 4.5, 0, 2 * Math.PI);
    context.fill();
  });
}

function tickLabel(value) {
  return value >= 10_000 ? `${digits(value / 1000)} k` : digits(value);
}

// The second that is selected in all charts of a view.
export class Cursor {
  constructor(onchange) {
    this.second = null;
    this.onchange = onchange;
  }

  set(second) {
    if (second === this.second) return;
    this.second = second;
    this.onchange();
  }

  key(event, total) {
    const step = {
      ArrowLeft: -1,
      ArrowRight: 1,
      PageUp: -10,
      PageDown: 10,
      Home: -Infinity,
      End: Infinity,
    }[event.key];
    if (step === undefined) {
      if (event.key === "Escape") this.set(null);
      return;
    }
    event.preventDefault();
    this.set(Math.max(0, Math.min(total - 1, (this.second ?? (step > 0 ? -1 : total)) + step)));
  }
}
