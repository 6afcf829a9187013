// Figures as people read them: decimal rates with their unit, unknown as "unknown", times in UTC.

const RATES = [
  [1e12, "Tbit/s"],
  [1e9, "Gbit/s"],
  [1e6, "Mbit/s"],
  [1e3, "kbit/s"],
  [1, "bit/s"],
];

const UNKNOWN = "unknown";

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function rateUnit(bitsPerSecond) {
  const size = Math.abs(bitsPerSecond ?? 0);
  return RATES.find(([unit]) => size >= unit) ?? RATES.at(-1);
}

export function digits(value, count = 4) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, Math.min(6, count - whole)));
}

export function rateParts(bitsPerSecond, count = 4) {
  if (!known(bitsPerSecond)) return [UNKNOWN, ""];
  const [size, unit] = rateUnit(bitsPerSecond);
  return [digits(bitsPerSecond / size, count), unit];
}

export function rate(bitsPerSecond, count = 4) {
  return rateParts(bitsPerSecond, count).filter(Boolean).join(" ");
}

export function percent(ratio, places = 2, signed = false) {
  if (!known(ratio)) return UNKNOWN;
  const text = (Math.abs(ratio) * 100).toFixed(places);
  const sign = ratio < 0 && Number(text) !== 0 ? "−" : signed && Number(text) !== 0 ? "+" : "";
  return `${sign}${text} %`;
}

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 1e-3) return `${digits(value * 1e6, 3)} µs`;
  if (size < 1) return `${digits(value * 1e3, 3)} ms`;
  return size < 100 ? `${digits(value, 3)} s` : span(value);
}

export function span(value) {
  const total = Math.max(0, Math.round(value));
  if (total < 100) return `${total} s`;
  const [days, hours] = [Math.floor(total / 86400), Math.floor((total % 86400) / 3600)];
  const [minutes, rest] = [Math.floor((total % 3600) / 60), total % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

export const count = (value) =>
  known(value) ? Math.round(value).toLocaleString("en").replaceAll(",", " ") : UNKNOWN;

export function instant(text) {
  if (!text) return UNKNOWN;
  const iso = new Date(text).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

export const clock = (text) =>
  text ? `${new Date(text).toISOString().slice(11, 19)} UTC` : UNKNOWN;

// A round number at or above the value: a scale that moves rarely.
export function niceAbove(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999) * power
  );
}
