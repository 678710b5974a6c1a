// The stream of the service: tables of rows, and what changes in them. It is read with fetch, because
// EventSource cannot send a token. If it breaks, the page keeps what it has and says since when.

import { ask, AnswerError } from "./session.js";

const SILENT_MS = 40_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

/** @typedef {Record<string, any>} Row */
/** @typedef {Map<string, Row>} Table */

export const TABLES = ["topologies", "domains", "hosts", "queues", "workloads"];

export class Stream extends EventTarget {
  constructor() {
    super();
    /** @type {Record<string, Table>} */
    this.tables = Object.fromEntries(TABLES.map((name) => [name, new Map()]));
    /** Rises with every change of a table. @type {Record<string, number>} */
    this.versions = Object.fromEntries(TABLES.map((name) => [name, 0]));
    this.loaded = false;
    this.connected = false;
    /** When this page lost its connection; 0 while it has one. */
    this.lostAt = 0;
    /** What the service says about the API server. */
    this.cluster = { reachable: true, since: "", problem: "" };
    /** Rises with all news. Their times have whole seconds: two can have the same. */
    this.news = 0;
    /** @type {AbortController|null} */
    this.request = null;
    this.stopped = false;
    this.pause = FIRST_PAUSE_MS;
  }

  /** Read until `stop`; an answer that says who may not read ends it as an event `denied`. */
  async run() {
    while (!this.stopped) {
      try {
        await this.readOnce();
      } catch (error) {
        if (error instanceof AnswerError && [400, 401, 403].includes(error.status)) {
          this.lost();
          this.dispatchEvent(new CustomEvent("denied", { detail: error }));
          return;
        }
      }
      if (this.stopped) return;
      this.lost();
      await new Promise((done) => setTimeout(done, this.pause * (0.5 + Math.random())));
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE_MS);
    }
  }

  stop() {
    this.stopped = true;
    this.request?.abort();
  }

  lost() {
    if (!this.lostAt) this.lostAt = Date.now();
    this.connected = false;
    this.emit("connection");
  }

  async readOnce() {
    const request = (this.request = new AbortController());
    const response = await ask("/api/stream", { signal: request.signal });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let waiting = "";
    /** @type {string[]} */
    let parts = [];
    let timer = setTimeout(() => request.abort(), SILENT_MS);
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => request.abort(), SILENT_MS);
        // A table may come in many pieces: they are joined once, at the end of the event.
        parts.push(decoder.decode(value, { stream: true }));
        if (!parts[parts.length - 1].includes("\n\n") && !endsEvent(parts)) continue;
        const blocks = (waiting + parts.join("")).split("\n\n");
        waiting = /** @type {string} */ (blocks.pop());
        parts = [];
        for (const block of blocks) this.take(block);
      }
    } finally {
      clearTimeout(timer);
      request.abort();
    }
  }

  /** @param {string} block */
  take(block) {
    let event = "";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (!event) return;
    const found = JSON.parse(data);
    if (!this.connected) {
      this.connected = true;
      this.lostAt = 0;
      this.pause = FIRST_PAUSE_MS;
      this.emit("connection");
    }
    if (event === "tables") this.replace(found);
    else if (event === "changes") this.change(found);
    else if (event === "cluster") {
      this.cluster = found;
      this.emit("connection");
    }
  }

  /** @param {any} found */
  replace(found) {
    for (const name of TABLES) {
      this.tables[name] = new Map(Object.entries(found.tables[name] ?? {}));
      this.versions[name] += 1;
    }
    this.news += 1;
    this.loaded = true;
    this.emit("tables");
  }

  /** @param {any} found */
  change(found) {
    for (const [name, rows] of Object.entries(found.tables)) {
      const table = this.tables[name];
      const entries = Object.entries(/** @type {Record<string, any>} */ (rows));
      if (!table || !entries.length) continue;
      for (const [key, row] of entries) {
        if (row === null) table.delete(key);
        else table.set(key, row);
      }
      this.versions[name] += 1;
    }
    this.news += 1;
    this.emit("tables");
  }

  /** @param {string} name */
  emit(name) {
    this.dispatchEvent(new Event(name));
  }
}

/** Whether the blank line of an event is split over two pieces. @param {string[]} parts */
function endsEvent(parts) {
  const last = parts[parts.length - 1];
  return last.startsWith("\n") && (parts[parts.length - 2] ?? "").endsWith("\n");
}
