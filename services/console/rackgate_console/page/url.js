// The state of the page is its URL, behind `#`: every view can be shared. No token or code is in it.

/** @typedef {Record<string, string>} State */

/** @returns {State} */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** @param {State} state */
export function link(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== undefined);
  return `#${new URLSearchParams(kept)}`;
}

/**
 * Change some parameters.
 * @param {State} change "" removes one
 * @param {boolean} [again] replace the entry in the history
 */
export function go(change, again = false) {
  const target = link({ ...read(), ...change });
  if (target === location.hash) return;
  if (again) {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}

/** Take a parameter out of the URL, so that it is not in the history. @param {string} name */
export function take(name) {
  const { [name]: value, ...rest } = read();
  if (value !== undefined) history.replaceState(null, "", link(rest));
  return value;
}
