// Heat map of pairs by second on a canvas. When new data is received, only the columns that have
// changed are drawn again. You do not need to see colours to read the states: late cells have
// stripes, null cells have crosses, missing cells have dots on grey, and pending cells are empty.
// If there are more pairs than rows, the lowest value of several pairs will be used for a row.

import { LATE, NOTHING, NULL } from "./burst.js";
import { colours, fit, secondLabel, secondTicks } from "./canvas.js";
import { announce, h, say } from "./dom.js";
import { counted, niceAbove, rate } from "./format.js";

const MARGIN = { left: 52, right: 12, top: 4, bottom: 24 };
const HEIGHT_MAX = 360;
const ROW_MAX = 24;
const LEVELS = 256;
// The states, from the best to the worst.
const STATES = ["pending", "value", "late", "missing", "null"];
const [PENDING, VALUE, LATE_VALUE, MISSING, NOUGHT] = [0, 1, 2, 3, 4];
const SAID = {
  late: "late",
  null: "null: the engine failed or transferred no data",
  missing: "missing: no data for this second",
  pending: "no data yet",
};

const name = (pair) => `pair-${String(pair + 1).padStart(3, "0")}`;

export class HeatMap {
  constructor(cursor) {
    this.cursor = cursor;
    this.title = "Pairs by second";
    this.pair = null;
    this.data = null;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": "Pairs by second. Arrow keys move from cell to cell.",
      onkeydown: (event) => this.#key(event),
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#leave(),
      onblur: () => this.#leave(),
    });
    this.over = h("canvas.overlay", { "aria-hidden": "true" });
    this.legend = h("ul.legend");
    this.readout = h("p.readout", "No data yet");
    this.unitLabel = h("span.unit");
    this.element = h(
      "figure.chart.heat",
      h("figcaption", h("h3", this.title), this.unitLabel, this.legend),
      h("div.plot", this.canvas, this.over),
      this.readout,
    );
  }

  setData(data) {
    this.data = data;
    this.pair = null;
    this.whole = true;
  }

  // Mark the seconds that have changed, or the complete map. They will be drawn again.
  touch(seconds, whole = false) {
    this.whole ||= whole;
    this.dirty ??= new Set();
    for (const second of seconds) this.dirty.add(second);
  }

  draw() {
    const data = this.data;
    this.element.hidden = !data?.hasPairs;
    if (this.element.hidden) return;
    const width = Math.max(160, this.canvas.parentElement?.clientWidth || 600);
    const top = niceAbove(data.topBitsPerSecond);
    const newest = data.total;
    const key = `${data.top > 0}/${width}/${data.pairsCount}/${newest}/${top}/${document.documentElement.dataset.theme}/${window.devicePixelRatio}`;
    if (this.whole || key !== this.key) {
      this.key = key;
      this.#layOut(width, top, newest);
      this.#axes();
      this.#paint(0, this.columns);
      this.#legend();
    } else if (this.dirty?.size) {
      const columns = new Set([...this.dirty].map((second) => Math.floor(second / this.perColumn)));
      for (const column of columns) this.#paint(column, column + 1);
    }
    this.whole = false;
    this.dirty = null;
    this.#read();
    this.#point2();
  }

  #layOut(width, top, newest) {
    const data = this.data;
    const inner = width - MARGIN.left - MARGIN.right;
    this.top = top;
    this.perRow = Math.ceil(data.pairsCount / HEIGHT_MAX);
    this.rows = Math.ceil(data.pairsCount / this.perRow);
    this.rowHeight = Math.max(1, Math.min(ROW_MAX, Math.floor(HEIGHT_MAX / this.rows)));
    const seconds = Math.max(1, newest);
    this.perColumn = Math.ceil(seconds / inner);
    this.columns = Math.ceil(seconds / this.perColumn);
    const height = this.rows * this.rowHeight + MARGIN.top + MARGIN.bottom;
    [this.context, this.ratio] = fit(this.canvas, width, height);
    fit(this.over, width, height);
    Object.assign(this, { width, height, inner });
    this.palette = colours();
    this.#colours();
    const [w, hgt] = [
      Math.round(inner * this.ratio),
      Math.round(this.rows * this.rowHeight * this.ratio),
    ];
    this.image = this.context.createImageData(w, hgt);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  #colours() {
    const stops = this.palette.heat.map(rgb);
    this.levels = new Uint32Array(LEVELS);
    // The colour of the stripes at each level.
    this.inks = new Uint32Array(LEVELS);
    for (let level = 0; level < LEVELS; level++) {
      const place = (level / (LEVELS - 1)) * (stops.length - 1);
      const at = Math.min(stops.length - 2, Math.floor(place));
      const mixed = stops[at].map((from, i) =>
        Math.round(from + (stops[at + 1][i] - from) * (place - at)),
      );
      this.levels[level] = pixel(mixed);
      this.inks[level] = pixel(level > LEVELS * 0.45 ? [16, 20, 26] : [255, 255, 255]);
    }
    this.ground = pixel(rgb(this.palette.ground));
    this.unknown = pixel(rgb(this.palette.unknown));
    this.mark = pixel(rgb(this.palette.ink));
  }

  // Get the worst state and the lowest value for a cell of the display, and store both in
  // this.cell.
  #cell(row, columns, knownS) {
    const { data, perRow } = this;
    const [from, to] = [row * perRow, Math.min(data.pairsCount, (row + 1) * perRow)];
    let state = PENDING;
    let low = NOTHING;
    for (const [second, cells] of columns) {
      for (let pair = from; pair < to; pair++) {
        const value = cells === null ? NOTHING : cells[pair];
        const code = data.codes[pair];
        let one = PENDING;
        if (value !== NOTHING) {
          if (value < low) low = value;
          one = code === LATE ? LATE_VALUE : VALUE;
        } else if (second < knownS) one = code === NULL ? NOUGHT : MISSING;
        if (one > state) state = one;
      }
    }
    this.low = low;
    return state;
  }

  #paint(fromColumn, toColumn) {
    const { image, pixels, ratio, columns, data, rows } = this;
    const [width, height] = [image.width, image.height];
    const scale = (LEVELS - 1) / (this.top / 1000);
    const edge = (column) => Math.round((column / columns) * width);
    const gap =
      this.rowHeight >= 6 && width / columns >= 6 * ratio ? Math.max(1, Math.round(ratio)) : 0;
    for (let column = fromColumn; column < Math.min(columns, toColumn); column++) {
      const [x0, x1] = [edge(column), Math.max(edge(column) + 1, edge(column + 1))];
      const seconds = [];
      for (let place = 0; place < this.perColumn; place++) {
        const second = column * this.perColumn + place;
        seconds.push([second, data.rows.get(second)?.cells ?? null]);
      }
      for (let row = 0; row < rows; row++) {
        const state = this.#cell(row, seconds, data.knownS);
        const known = this.low !== NOTHING;
        const level = known ? Math.min(LEVELS - 1, Math.round(this.low * scale)) : 0;
        const fill = state === PENDING ? this.ground : known ? this.levels[level] : this.unknown;
        const texture = TEXTURES[STATES[state]];
        const ink = known ? this.inks[level] : this.mark;
        const y0 = Math.round(row * this.rowHeight * ratio);
        const y1 = Math.round((row + 1) * this.rowHeight * ratio);
        for (let y = y0; y < y1; y++) {
          const line = y * width;
          if (gap && y >= y1 - gap) {
            pixels.fill(this.ground, line + x0, line + x1);
            continue;
          }
          pixels.fill(fill, line + x0, line + x1 - gap);
          if (gap) pixels.fill(this.ground, line + x1 - gap, line + x1);
          if (!texture) continue;
          for (let x = x0; x < x1 - gap; x++) {
            if (texture(Math.floor(x / ratio), Math.floor(y / ratio))) pixels[line + x] = ink;
          }
        }
      }
    }
    const [x0, x1] = [edge(fromColumn), Math.min(width, edge(toColumn))];
    const [left, top] = [Math.round(MARGIN.left * ratio), Math.round(MARGIN.top * ratio)];
    this.context.putImageData(image, left, top, x0, 0, Math.max(1, x1 - x0), height);
  }

  #axes() {
    const { context, palette, data } = this;
    context.clearRect(0, 0, this.width, this.height);
    context.font = `12px ${palette.font}`;
    context.fillStyle = palette.quiet;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const steps = [1, 5, 10, 20, 50, 100, 200, 500];
    const high = (step) => (step / this.perRow) * this.rowHeight >= 22;
    const step = steps.find(high) ?? 1000;
    for (
      let pair = 1;
      pair <= data.pairsCount;
      pair = pair === 1 && step > 1 ? step : pair + step
    ) {
      const at = MARGIN.top + (Math.floor((pair - 1) / this.perRow) + 0.5) * this.rowHeight;
      if (pair > 1 || step > 1 || this.rowHeight >= 10)
        context.fillText(String(pair), MARGIN.left - 8, Math.max(at, 8));
    }
    context.textBaseline = "top";
    const seconds = this.columns * this.perColumn;
    for (const tick of secondTicks(seconds, this.inner / 64)) {
      const at = MARGIN.left + (tick / seconds) * this.inner;
      context.textAlign = tick === 0 ? "left" : at > this.width - 40 ? "right" : "center";
      context.fillText(secondLabel(tick), at, this.height - MARGIN.bottom + 7);
    }
    context.strokeStyle = palette.faint;
    context.strokeRect(
      MARGIN.left - 0.5,
      MARGIN.top - 0.5,
      this.inner + 1,
      this.rows * this.rowHeight + 1,
    );
    const folded = [];
    if (this.perRow > 1) folded.push(`${this.perRow} pairs`);
    if (this.perColumn > 1) folded.push(`${this.perColumn} s`);
    const layer = data.layer === "link" ? "link layer, senders' NICs" : "payload";
    say(
      this.unitLabel,
      `pair number by second, ${layer}${folded.length ? `; each cell shows the minimum of ${folded.join(" × ")}` : ""}`,
    );
  }

  #legend() {
    const bar = h("canvas.swatch.ramp", { "aria-hidden": "true" });
    const [context] = fit(bar, 90, 12);
    const ramp = context.createLinearGradient(0, 0, 90, 0);
    this.palette.heat.forEach((colour, i, all) => ramp.addColorStop(i / (all.length - 1), colour));
    context.fillStyle = ramp;
    context.fillRect(0, 0, 90, 12);
    const entries = this.data.top ? [h("li", "0", bar, rate(this.top, 2))] : [];
    for (const state of ["late", "null", "missing"])
      entries.push(h("li", this.#swatch(state), state));
    this.legend.replaceChildren(...entries);
  }

  #swatch(state) {
    const swatch = h("canvas.swatch", { "aria-hidden": "true" });
    const [context, ratio] = fit(swatch, 26, 12);
    const image = context.createImageData(swatch.width, swatch.height);
    const pixels = new Uint32Array(image.data.buffer);
    const fill = state === "late" ? this.levels[180] : this.unknown;
    for (let i = 0; i < pixels.length; i++) {
      const [x, y] = [Math.floor((i % image.width) / ratio), Math.floor(i / image.width / ratio)];
      pixels[i] = TEXTURES[state](x, y) ? (state === "late" ? this.inks[180] : this.mark) : fill;
    }
    context.putImageData(image, 0, 0);
    return swatch;
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(
      ((event.clientX - box.left - MARGIN.left) / this.inner) * this.columns,
    );
    const row = Math.floor((event.clientY - box.top - MARGIN.top) / this.rowHeight);
    if (column < 0 || row < 0 || column >= this.columns || row >= this.rows) return null;
    return [row, column];
  }

  #point(event) {
    const at = this.columns ? this.#at(event) : null;
    if (at === null) return this.#leave();
    this.pair = this.#lowest(...at);
    this.cursor.set(at[1] * this.perColumn);
    this.#read();
    this.#point2();
  }

  #leave() {
    this.pair = null;
    this.cursor.set(null);
  }

  // Get the pair to use for a row, in case there are several pairs.
  #lowest(row, column) {
    const second = column * this.perColumn;
    const last = Math.min(this.data.pairsCount, (row + 1) * this.perRow);
    let found = row * this.perRow;
    const badness = (pair) =>
      STATES.indexOf(this.data.state(pair, second)) * 1e15 - (this.data.cell(pair, second) ?? 0);
    for (let pair = found + 1; pair < last; pair++)
      if (badness(pair) > badness(found)) found = pair;
    return found;
  }

  #key(event) {
    const data = this.data;
    if (!data) return;
    const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (rows !== undefined) {
      event.preventDefault();
      const from = this.pair ?? (rows > 0 ? -1 : data.pairsCount);
      this.pair = Math.max(
        0,
        Math.min(data.pairsCount - 1, from + rows * (event.shiftKey ? 10 : 1)),
      );
      if (this.cursor.second === null) this.cursor.set(Math.max(0, data.stop - 1));
    } else {
      this.pair ??= 0;
      this.cursor.key(event, Math.max(data.stop, 1));
    }
    this.#read();
    this.#point2();
    if (this.pair !== null && this.cursor.second !== null) announce(this.readout.textContent);
  }

  #read() {
    const second = this.cursor.second;
    if (this.pair === null || second === null) {
      const data = this.data;
      const bad = data ? data.trouble.size : 0;
      const text = data?.stop
        ? `${counted(data.pairsCount, "pair")}, ${data.stop} s${data.over ? "" : " so far"}; ${bad ? `${bad} not measured` : "all pairs measured"}`
        : (data?.silence ?? "No data yet");
      say(this.readout, text);
      return;
    }
    const [value, state] = [this.data.cell(this.pair, second), this.data.state(this.pair, second)];
    const what =
      value === null
        ? SAID[state]
        : `${rate(value)} ${this.data.layer}${state === "late" ? ", late" : ""}`;
    const why = this.data.trouble.get(this.pair)?.reason;
    say(
      this.readout,
      `${name(this.pair)}, second ${second + 1}: ${what}${why && state !== "pending" ? ` (${why})` : ""}`,
    );
  }

  #point2() {
    if (!this.over.width || !this.columns) return;
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    const second = this.cursor.second;
    if (second === null || !this.data) return;
    const column = Math.floor(second / this.perColumn);
    if (column < 0 || column >= this.columns) return;
    const x = MARGIN.left + (column / this.columns) * this.inner;
    const w = Math.max(2, this.inner / this.columns);
    context.strokeStyle = this.palette.ink;
    context.lineWidth = 1;
    context.setLineDash([2, 2]);
    context.strokeRect(x - 0.5, MARGIN.top - 0.5, w + 1, this.rows * this.rowHeight + 1);
    context.setLineDash([]);
    if (this.pair === null) return;
    const y = MARGIN.top + Math.floor(this.pair / this.perRow) * this.rowHeight;
    context.lineWidth = 3;
    context.strokeStyle = this.palette.ground;
    context.strokeRect(x - 1, y - 1, w + 2, this.rowHeight + 2);
    context.lineWidth = 1.5;
    context.strokeStyle = this.palette.ink;
    context.strokeRect(x - 1, y - 1, w + 2, this.rowHeight + 2);
  }
}

// Functions that return true if a pixel is part of the texture. The position is in CSS pixels
// from the start of the map. If a row is only one pixel high, the texture will look like dashes.
const TEXTURES = {
  late: (x, y) => (x + y) % 5 === 0,
  null: (x, y) => (x + y) % 6 === 0 || (x - y + 6000) % 6 === 0,
  missing: (x, y) => (x + 2 * y) % 6 === 0 && y % 3 === 1,
};

function rgb(text) {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
