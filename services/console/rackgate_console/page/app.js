// Starts the page: session, stream, and the view that the URL names.

import { fill, h } from "./dom.js";
import { clock } from "./format.js";
import { open, session } from "./session.js";
import { signIn } from "./sign-in.js";
import { Stream } from "./stream.js";
import { connect as connectTheme } from "./theme.js";
import { link, read, take } from "./url.js";
import { MapView } from "./map/view.js";
import { PendingView } from "./pending.js";
import { QueuesView } from "./queues.js";
import { WhatIfView } from "./what-if.js";
import { WorkloadView } from "./workload.js";

/** @type {Record<string, {title: string, make: new (stream: Stream) => {element: HTMLElement, update: () => void, close: () => void}}>} */
const VIEWS = {
  map: { title: "Map", make: MapView },
  queues: { title: "Queues", make: QueuesView },
  pending: { title: "Pending", make: PendingView },
  workload: { title: "Workload", make: WorkloadView },
  "what-if": { title: "What if", make: WhatIfView },
};
const CHOOSING_MS = 10_000;
// Kept from view to view; the rest of the URL belongs to one.
const SHARED = ["theme", "ns", "topology", "resource"];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const views = /** @type {HTMLElement} */ (document.getElementById("views"));
const connection = /** @type {HTMLElement} */ (document.getElementById("connection"));

/** @type {Stream|null} */
let stream = null;
/** @type {{element: HTMLElement, update: () => void, close: () => void}|null} */
let view = null;
let shown = "";
let waiting = false;
let spaces = "";
/** Until when somebody chooses from a list, at most. */
let choosingUntil = 0;

function show() {
  if (!stream) return;
  const state = read();
  const wanted = Object.hasOwn(VIEWS, state.view ?? "") ? state.view : "map";
  if (state.ns !== spaces && (state.ns || spaces)) {
    spaces = state.ns || "";
    start();
    return;
  }
  if (wanted !== shown) {
    view?.close();
    view = new VIEWS[wanted].make(stream);
    shown = wanted;
    fill(main, view.element);
    document.title = `${VIEWS[wanted].title} · Rackgate`;
    /** @type {any} */ (globalThis).rackgate = { view, stream };
  }
  navigation(state, wanted);
  if (stream.loaded) view?.update();
}

/** @param {Record<string, string>} state @param {string} wanted */
function navigation(state, wanted) {
  const kept = Object.fromEntries(SHARED.map((name) => [name, state[name] ?? ""]));
  fill(views, h("ul", {}, ...Object.entries(VIEWS).map(([key, { title }]) => h("li", {},
    h("a", { id: `v-${key}`, href: link({ ...kept, view: key === "map" ? "" : key, w: key === "workload" ? state.w ?? "" : "" }), "aria-current": key === wanted ? "page" : false }, title)))));
}

/** Several changes of one moment are drawn together. */
function later() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    if (Date.now() < choosingUntil) later();
    else show();
  }, 60);
}

function showConnection() {
  if (!stream) return;
  const { cluster } = stream;
  let text = "Live";
  let state = "live";
  if (stream.lostAt) {
    text = `Disconnected since ${clock(new Date(stream.lostAt).toISOString())}; showing what was known then`;
    state = "lost";
  } else if (!cluster.reachable) {
    text = `The API server does not answer since ${clock(cluster.since)}; showing what was known then`;
    state = "lost";
  } else if (!stream.loaded) [text, state] = ["Connecting", "wait"];
  if (connection.textContent !== text) connection.textContent = text;
  connection.title = cluster.problem || "";
  document.body.dataset.connection = state;
}

async function start(problem = "") {
  stream?.stop();
  stream = null;
  view?.close();
  view = null;
  shown = "";
  const code = take("code");
  try {
    if (code) await open(code);
    const found = await session();
    spaces = read().ns || "";
    /** @type {HTMLElement} */ (document.getElementById("cluster")).textContent = found.cluster;
    stream = new Stream();
    stream.addEventListener("tables", later);
    stream.addEventListener("tables", showConnection);
    stream.addEventListener("connection", showConnection);
    stream.addEventListener("denied", (event) => start(/** @type {any} */ (event).detail.message));
    showConnection();
    fill(main, h("p", { class: "hint" }, "Reading the cluster …"));
    stream.run();
    show();
  } catch (error) {
    const { status = 0, mode = "", message } = /** @type {any} */ (error);
    if ([400, 401, 403].includes(status)) {
      signIn(main, mode || "cluster", problem || (code || status !== 401 ? message : ""), () => start());
      return;
    }
    fill(main, h("p", { class: "notice bad", role: "alert" }, `The console does not answer: ${message}. Trying again …`));
    setTimeout(() => start(), 3_000);
  }
}

connectTheme(/** @type {HTMLElement} */ (document.getElementById("theme")), show);
// News wait while somebody chooses from a list: a new list would close it.
for (const kind of ["pointerdown", "keydown"]) {
  main.addEventListener(kind, (event) => {
    if (event.target instanceof HTMLSelectElement) choosingUntil = Date.now() + CHOOSING_MS;
  });
}
for (const kind of ["change", "focusout"]) main.addEventListener(kind, () => { choosingUntil = 0; });
// The hash is the view, so a link to `#main` would close it.
/** @type {HTMLElement} */ (document.querySelector(".skip")).addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => (read().code ? start() : show()));
start();
