// Amounts, times and names as text.

const BYTES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

/** @param {string} resource */
const isBytes = (resource) =>
  resource === "memory" || resource === "ephemeral-storage" || resource.startsWith("hugepages-");

/**
 * An amount of a resource: cpu in millicores, bytes, or a count.
 * @param {string} resource @param {number} value
 */
export function amount(resource, value) {
  if (resource === "cpu") return trimmed(value / 1000);
  if (!isBytes(resource)) return value.toLocaleString("en");
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1024 && unit < BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${value < 0 ? "-" : ""}${trimmed(size)}${BYTES[unit]}`;
}

/** @param {number} value */
const trimmed = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 });

/** `nvidia.com/gpu` as `gpu`, `cloud.example.com/topology-rack` as `topology-rack`. @param {string} key */
export const short = (key) => key.slice(key.lastIndexOf("/") + 1);

/** @param {string} plural @param {number} count */
export const count = (count, plural) =>
  `${count.toLocaleString("en")} ${count === 1 ? plural.replace(/ies$/, "y").replace(/s$/, "") : plural}`;

/** @param {number} share */
export const percent = (share) => `${Math.round(share * 100)} %`;

/** Seconds as `3 d 4 h`, `12 min`, `5 s`. @param {number} seconds */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** How long ago a time of the API server is. @param {string} time @param {number} now milliseconds */
export function since(time, now) {
  const at = Date.parse(time);
  return Number.isNaN(at) ? "" : duration((now - at) / 1000);
}

/** A time of the API server on this machine's clock. @param {string} time */
export function clock(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "";
  const text = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString()
    ? text
    : `${at.toLocaleDateString("en-CA")} ${text}`;
}
