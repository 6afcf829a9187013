// Functions for all charts that use a canvas: size, colours of the theme, and round values for
// the axes.

export function fit(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [context, ratio];
}

// Draw a straight line from one point to another.
export function stroke(context, from, to, { colour, width = 1, dash = [] }) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
  context.setLineDash([]);
}

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const chart = (name) => read(`--chart-${name}`);
  return {
    ground: read("--surface"),
    ink: read("--ink"),
    quiet: read("--quiet"),
    faint: chart("faint"),
    unknown: chart("unknown"),
    fleet: chart("fleet"),
    band: chart("fleet-band"),
    counter: chart("counter"),
    target: chart("target"),
    other: chart("other"),
    missing: chart("missing"),
    pass: read("--good"),
    fail: read("--bad"),
    inconclusive: read("--warn"),
    measured: read("--ink"),
    heat: [0, 1, 2, 3, 4].map((index) => read(`--heat-${index}`)),
    font: getComputedStyle(document.body).fontFamily,
  };
}

export function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) {
    found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  }
  return found;
}

export function secondTicks(total, wanted) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800];
  const step = steps.find((each) => total / each <= wanted && (total < 180 || each >= 60)) ?? 86400;
  const found = [];
  for (let at = 0; at <= total; at += step) found.push(at);
  return found;
}

export function secondLabel(second) {
  if (second < 120 || second % 60) return `${second} s`;
  return second < 7200 ? `${second / 60} min` : `${second / 3600} h`;
}
