// What a viewer without a session sees.

import { fill, h } from "./dom.js";
import { namespaces, open, setToken } from "./session.js";
import { go } from "./url.js";

/**
 * @param {Element} main @param {string} mode `local` or `cluster` @param {string} problem
 * @param {() => void} again
 */
export function signIn(main, mode, problem, again) {
  const local = mode === "local";
  const secret = /** @type {HTMLInputElement} */ (h("input", { id: "s-secret", type: "password", autocomplete: "off", required: true }));
  const spaces = /** @type {HTMLInputElement} */ (h("input", { id: "s-spaces", type: "text", value: namespaces(), placeholder: "team-a, team-b" }));
  const said = h("p", { role: "alert", class: problem ? "notice bad" : "" }, problem);
  fill(main, h("form", {
    class: "sign-in",
    onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (local) {
        try {
          await open(secret.value.trim().replace(/^.*code=/, ""));
        } catch (error) {
          said.textContent = String(/** @type {Error} */ (error).message);
          said.className = "notice bad";
          return;
        }
      } else {
        setToken(secret.value);
        go({ ns: spaces.value.split(/[\s,]+/).filter(Boolean).join(",") }, true);
      }
      secret.value = "";
      again();
    },
  },
  h("h1", {}, local ? "Open this console" : "Who looks?"), said,
  h("p", {}, local
    ? "The link is valid once. Press Enter in the terminal of `rackgate console`, and open the new link or paste its code."
    : "Paste a token of yours, for example from `kubectl create token`. It stays in this page and is forgotten when you close or reload it."),
  h("label", { class: "field block" }, h("span", {}, local ? "Code" : "Token"), secret),
  local ? "" : h("label", { class: "field block" }, h("span", {}, "Namespaces, if you may not list Workloads of all"), spaces),
  h("button", { type: "submit", class: "primary" }, "Open")));
  secret.focus();
}
