// One burst's seconds as they come in, and what is known of its pairs.

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
  constructor(burstIndex, pairsCount, totalSeconds) {
    this.burstIndex = burstIndex;
    this.pairsCount = pairsCount;
    this.totalSeconds = totalSeconds; // planned, warm-up included
    this.rows = new Map(); // by second: figures, and a cell a pair in kbit/s
    this.stop = 0; // one past the newest second of which anything is known
    this.knownS = 0;
    this.layer = "payload";
    this.top = 0; // largest cell
    this.trouble = new Map(); // by pair index
    this.codes = new Uint8Array(pairsCount);
    this.start = null;
    this.knowsCells = false; // a rate of any pair in any second
    this.over = false; // nothing more will be reported
  }

  // What to say where nothing is known.
  get silence() {
    return this.over ? "No data" : "No data yet";
  }

  // Whether there are seconds of single pairs; an imported table has none.
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

  // Returns the pairs whose state has changed.
  setTrouble(list) {
    const before = this.trouble;
    this.trouble = new Map(list.map((each) => [each.pair_index, each]));
    this.codes = new Uint8Array(this.pairsCount); // what a cell of the pair is at worst
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

  // What a cell stands for: "value", "late", "null", "missing", "pending".
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
