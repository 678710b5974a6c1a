// Who looks: a code from the terminal on the user's own machine, a token in a cluster. The token is in
// a variable of this module and nowhere else; a reload asks for it again.

import { read } from "./url.js";

/**
 * @typedef {{mode: "local"|"cluster", user: string, cluster: string, version: string,
 *   access: {nodes: boolean, queues: boolean, allNamespaces: boolean, namespaces: string[]}}} Session
 */

let token = "";

/** An answer that is no success; `field` is the path of what is wrong. */
export class AnswerError extends Error {
  /** @param {number} status @param {{error?: string, field?: string, mode?: string}} body */
  constructor(status, body) {
    super(body.error || `HTTP ${status}`);
    this.status = status;
    this.field = body.field || "";
    this.mode = body.mode || "";
  }
}

/** @param {string} found */
export function setToken(found) {
  token = found.trim();
}

/** Namespaces that a user without the right to list all of them has named. */
export const namespaces = () => read().ns || "";

/**
 * Ask the service.
 * @param {string} path @param {RequestInit & {json?: any, query?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let { body } = options;
  if (options.json !== undefined) {
    headers.set("Content-Type", "application/json");
    body = JSON.stringify(options.json);
  }
  const query = new URLSearchParams(options.query);
  if (namespaces()) query.set("namespaces", namespaces());
  const response = await fetch(String(query) ? `${path}?${query}` : path, { ...options, body, headers, cache: "no-store" });
  if (response.ok) return response;
  let found = {};
  try {
    found = await response.json();
  } catch {
    // A proxy answered.
  }
  throw new AnswerError(response.status, found);
}

/** @returns {Promise<Session>} */
export const session = async () => (await ask("/api/session")).json();

/** Exchange the code of the terminal for a cookie. @param {string} code */
export const open = (code) => ask("/api/session", { method: "POST", json: { code } });
