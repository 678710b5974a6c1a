// Where a manifest would go: now, on an empty cluster, or with more nodes. Nothing is written.

import { choice, fill, h, name } from "./dom.js";
import { explanationOf } from "./explanation.js";
import { jsonButton } from "./export.js";
import { ask } from "./session.js";

const MOST_BYTES = 256 * 1024;

export class WhatIfView {
  /** @param {import("./stream.js").Stream} stream */
  constructor(stream) {
    this.stream = stream;
    this.element = h("div", { class: "what-if-view" });
    this.queue = "";
    /** The queues that the form has. */
    this.known = "-";
    this.answer = h("section", { class: "answer", "aria-live": "polite" });
    this.text = /** @type {HTMLTextAreaElement} */ (h("textarea", { id: "f-manifest", spellcheck: "false", rows: "18", placeholder: "apiVersion: batch/v1\nkind: Job\n…", "aria-describedby": "f-hint" }));
    this.more = /** @type {HTMLInputElement} */ (h("input", { id: "f-more", type: "number", min: "0", max: "10000", value: "0" }));
    this.empty = /** @type {HTMLInputElement} */ (h("input", { id: "f-empty", type: "checkbox" }));
    this.queues = h("div", {});
    const file = h("input", { id: "f-file", type: "file", accept: ".yaml,.yml,.json", onchange: (/** @type {Event} */ event) => this.read(/** @type {HTMLInputElement} */ (event.target).files?.[0]) });
    this.text.addEventListener("dragover", (event) => event.preventDefault());
    this.text.addEventListener("drop", (event) => {
      event.preventDefault();
      this.read(event.dataTransfer?.files[0]);
    });
    this.element.append(h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.send(); } },
      h("h1", {}, "What if"),
      h("p", { id: "f-hint", class: "hint" }, "Paste the manifest of a Job, JobSet, RayCluster, RayJob or Workload, or drop a file. Nothing is written."),
      h("label", { class: "field block", for: "f-manifest" }, h("span", {}, "Manifest")), this.text,
      h("div", { class: "controls" }, h("label", { class: "field" }, h("span", {}, "File"), file), this.queues,
        h("label", { class: "field" }, h("span", {}, "More nodes"), this.more),
        h("label", { class: "field check" }, this.empty, h("span", {}, "Empty cluster")),
        h("button", { type: "submit", class: "primary" }, "Ask"))), this.answer);
  }

  close() {}

  update() {
    const names = [...this.stream.tables.queues.values()].filter((row) => row.kind === "LocalQueue").map((row) => `${row.ns}/${row.name}`).sort();
    const stamp = names.join();
    if (stamp === this.known) return;
    this.known = stamp;
    fill(this.queues, choice("f-queue", "Queue", [["", "that of the manifest"], ...names.map((one) => /** @type {[string, string]} */ ([one, one]))], this.queue, (value) => { this.queue = value; }));
  }

  /** @param {File|undefined} file */
  async read(file) {
    if (!file) return;
    if (file.size > MOST_BYTES) {
      this.show(h("p", { class: "notice bad", role: "alert" }, `The file has more than ${MOST_BYTES / 1024} KiB.`));
      return;
    }
    this.text.value = await file.text();
  }

  async send() {
    const [namespace, queue = ""] = this.queue.split("/");
    this.show(h("p", { class: "hint" }, "…"));
    try {
      const response = await ask("/api/what-if", { method: "POST", json: {
        manifest: this.text.value, namespace, queue, empty: this.empty.checked, moreNodes: Number(this.more.value) || 0,
      } });
      const found = await response.json();
      const { fits } = found.explanation;
      const places = found.explanation.flavors.flatMap((/** @type {any} */ view) => view.places);
      this.show(
        h("h2", {}, fits ? "It fits" : "It does not fit", " ", jsonButton(() => found, "what-if")),
        ...places.map((/** @type {any} */ one) => h("p", {}, name(one.podset), ": ", ...one.places.flatMap((/** @type {any} */ place, /** @type {number} */ at) => [at ? ", " : "", name(`${place.domain.join(" / ")} (${place.pods})`)]), one.domains > one.places.length ? ` and ${one.domains - one.places.length} more domains` : "")),
        explanationOf(found.explanation),
        h("ul", { class: "plain hint" }, ...found.notes.map((/** @type {string} */ one) => h("li", {}, name(one)))));
    } catch (error) {
      const { message, field } = /** @type {any} */ (error);
      this.show(h("p", { class: "notice bad", role: "alert" }, field ? h("code", {}, field) : "", field ? ": " : "", name(message)));
    }
  }

  /** @param {...Node} children */
  show(...children) {
    fill(this.answer, ...children);
  }
}
