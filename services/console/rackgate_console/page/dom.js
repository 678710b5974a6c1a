// Elements. Text of the cluster is only ever set as text, never as HTML.

/**
 * An element with properties and children.
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; `on…` are listeners, and false or null leaves one out
 * @param {...(Node|string|number|null|undefined|false|Array<Node|string>)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  append(node, children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * As `h`, for SVG.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Node|string)} children
 * @returns {SVGElement}
 */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setProps(node, props);
  append(node, children);
  return node;
}

/** @param {Element} node @param {Record<string, any>} props */
function setProps(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") /** @type {any} */ (node)[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Element} node @param {Array<any>} children */
function append(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/**
 * A name of the cluster: its direction is its own.
 * @param {string} text
 */
export const name = (text) => h("bdi", { class: "name" }, text);

/**
 * Replace the children of a node, and keep the focus if the focused child has an equal id, or is a
 * link to the same place.
 * @param {Element} node @param {...(Node|string)} children
 */
export function fill(node, ...children) {
  const focused = document.activeElement;
  const id = focused && node.contains(focused) ? focused.id : "";
  const start = focused instanceof HTMLInputElement && id ? focused.selectionStart : null;
  const href = focused instanceof HTMLAnchorElement && !id && node.contains(focused) ? focused.getAttribute("href") : null;
  const text = focused?.textContent;
  node.replaceChildren(...children);
  const links = href === null ? [] : [...node.querySelectorAll("a")].filter((one) => one.getAttribute("href") === href);
  const again = id ? document.getElementById(id) : links.find((one) => one.textContent === text) ?? links[0] ?? null;
  if (again && again !== document.activeElement) {
    again.focus({ preventScroll: true });
    if (again instanceof HTMLInputElement && start !== null) again.setSelectionRange(start, start);
  }
}

/**
 * A select with a label.
 * @param {string} id @param {string} label @param {Array<[string, string]>} options value and text
 * @param {string} value @param {(value: string) => void} onChange
 */
export function choice(id, label, options, value, onChange) {
  const select = h(
    "select",
    { id, onchange: (/** @type {Event} */ event) => onChange(/** @type {HTMLSelectElement} */ (event.target).value) },
    ...options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
  );
  return h("label", { class: "field" }, h("span", {}, label), select);
}
