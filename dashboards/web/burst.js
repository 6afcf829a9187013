// Data of a burst by second, and the state of the jobs of its pairs. New data will be added when it
// is received from the stream.

export const NOTHING = 0xffffffff;
export const [LATE, NULL, OTHER] = [1, 2, 3];
const STEP_BITS_PER_SECOND = 1000;
const COLUMNS = [
  "coverage_ratio",
  "fleet_bits_per_second",
  "pair_p5_bits_per_second",
  "pair_p50_bits_per_second",
  "pair_p95_bits_per_second",
  "retransmits_count",
  "rtt_mean_s",
  "client_cpu_ratio",
  "server_cpu_ratio",
];

export class BurstData {
  constructor(burst, pairsCount, totalSeconds) {
    this.burst = burst;
    this.pairsCount = pairsCount;
    // Planned seconds, including the warm-up.
    this.totalSeconds = totalSeconds;
    // Rows by second, with the metrics and a cell in kbit/s for each pair.
    this.rows = new Map();
    // First second for which no data is available yet.
    this.stop = 0;
    this.knownS = 0;
    this.layer = "payload";
    // Value of the largest cell. It is used to set the scale.
    this.top = 0;
    // Problems by the index of the pair.
    this.trouble = new Map();
    this.codes = new Uint8Array(pairsCount);
    this.start = null;
    // True if the rate of at least one pair is available.
    this.knowsCells = false;
    // True if no more data will be reported.
    this.over = false;
  }

  // Number of seconds that charts show.
  get total() {
    return Math.max(this.totalSeconds, this.stop);
  }

  // Text to use if there is no data.
  get silence() {
    return this.over ? "No data" : "No data yet";
  }

  // True if rates of single pairs are available. For an imported table, this can be false.
  get hasPairs() {
    return this.pairsCount > 0 && this.stop > 0;
  }

  apply(message) {
    const { pairs_count: pairsCount, second: numbers } = message;
    const packed = Uint8Array.from(atob(message.pairs), (letter) => letter.charCodeAt(0));
    const cells = new Uint32Array(packed.buffer);
    this.pairsCount = pairsCount;
    this.knownS = message.known_s;
    this.layer = message.layer;
    this.start = message.start_at;
    numbers.forEach((second, place) => {
      const row = { cells: cells.subarray(place * pairsCount, (place + 1) * pairsCount) };
      for (const name of COLUMNS) row[name] = message[name][place];
      this.rows.set(second, row);
      this.stop = Math.max(this.stop, second + 1);
      for (const cell of row.cells) {
        if (cell === NOTHING) continue;
        this.knowsCells = true;
        if (cell > this.top) this.top = cell;
      }
    });
    return numbers;
  }

  // Set the pairs that have problems, and return those that need to be drawn again.
  setTrouble(list) {
    const before = this.trouble;
    this.trouble = new Map(list.map((each) => [each.pair_index, each]));
    // The worst state that a cell of the pair can have.
    this.codes = new Uint8Array(this.pairsCount);
    for (const each of list)
      this.codes[each.pair_index] = { late: LATE, null: NULL }[each.state] ?? OTHER;
    const changed = new Set();
    for (const [index, each] of this.trouble)
      if (before.get(index)?.state !== each.state) changed.add(index);
    for (const index of before.keys()) if (!this.trouble.has(index)) changed.add(index);
    return changed;
  }

  has(name) {
    return [...this.rows.values()].some((row) => (row[name] ?? null) !== null);
  }

  value(name, second) {
    return this.rows.get(second)?.[name] ?? null;
  }

  cell(pair, second) {
    const cell = this.rows.get(second)?.cells[pair];
    return cell === undefined || cell === NOTHING ? null : cell * STEP_BITS_PER_SECOND;
  }

  // Return the state of a cell: "value", "late", "null", "missing" or "pending".
  state(pair, second) {
    const known = this.cell(pair, second) !== null;
    const state = this.trouble.get(pair)?.state;
    if (known) return state === "late" ? "late" : "value";
    if (second >= this.knownS) return "pending";
    return state === "null" ? "null" : "missing";
  }

  get topBitsPerSecond() {
    return this.top * STEP_BITS_PER_SECOND;
  }

  series(name, factor = 1) {
    return Array.from({ length: this.stop }, (_, second) => {
      const value = this.value(name, second);
      return value === null ? null : value * factor;
    });
  }
}
