// Server-sent events with fetch. We cannot use EventSource, because it does not support a bearer
// token. If the connection is lost, it will be opened again from the last event, with a delay
// that increases.

import { headers, problemOf } from "./api.js";

// If no data has been received for this time, we need to set a warning. The coordinator sends a
// heartbeat every 5 s.
const SILENCE_MAX_MS = 12_000;
const WAIT_MS = [500, 1000, 2000, 4000, 8000];
// Interval to check the stream. It should be short, because it is also used to update the clock
// on the page.
const LOOK_MS = 250;

export class Stream {
  constructor(path, { onevent, onstate, onend, onproblem }) {
    Object.assign(this, { path, onevent, onstate, onend, onproblem });
    this.lastId = null;
    this.heardAt = performance.now();
    this.live = false;
    this.closed = false;
    // True if we have received the summary. The server will close the stream after it.
    this.ending = false;
    this.attempt = 0;
    this.watch = setInterval(() => this.#look(), LOOK_MS);
    this.#run();
  }

  get silentSeconds() {
    return (performance.now() - this.heardAt) / 1000;
  }

  close() {
    this.closed = true;
    clearInterval(this.watch);
    this.abort?.abort();
  }

  #look() {
    if (this.live && performance.now() - this.heardAt > SILENCE_MAX_MS) this.abort?.abort();
    this.onstate(this.live);
  }

  async #run() {
    while (!this.closed) {
      this.abort = new AbortController();
      try {
        if (await this.#read()) break;
      } catch (error) {
        if (error.fatal) {
          this.close();
          this.onproblem(error.problem);
          return;
        }
      }
      if (this.closed) return;
      this.live = false;
      this.onstate(false);
      const wait = WAIT_MS[Math.min(this.attempt++, WAIT_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
    }
    if (!this.closed) {
      this.close();
      this.onend();
    }
  }

  async #read() {
    const more = this.lastId ? { "Last-Event-ID": this.lastId } : {};
    const answer = await fetch(this.path, { headers: headers(more), signal: this.abort.signal });
    if (!answer.ok) {
      const problem = await problemOf(answer);
      throw Object.assign(new Error(problem.message), {
        fatal: answer.status < 500 && answer.status !== 429,
        problem,
      });
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return this.ending;
      this.heardAt = performance.now();
      if (!this.live) {
        this.live = true;
        this.attempt = 0;
        this.onstate(true);
      }
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#tell(block);
    }
  }

  #tell(block) {
    let name = null;
    const data = [];
    let id = null;
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
      else if (line.startsWith("id: ")) id = line.slice(4);
    }
    if (name) {
      if (name === "summary") this.ending = true;
      this.onevent(name, JSON.parse(data.join("\n")));
    }
    if (id) this.lastId = id;
  }
}
