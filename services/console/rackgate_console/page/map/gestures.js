// Mouse, touch and keyboard on the map.

/**
 * @param {import("./canvas.js").MapCanvas} map
 * @param {{hover: (event: PointerEvent) => void, leave: () => void, choose: (event: PointerEvent) => void,
 *   step: (dx: number, dy: number) => void, enter: () => void, escape: () => void}} on
 */
export function listen(map, on) {
  const { canvas } = map;
  /** @type {Map<number, PointerEvent>} */
  const down = new Map();
  let moved = 0;

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, y } = map.point(event);
    map.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), x, y);
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event);
    moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) {
      on.hover(event);
      return;
    }
    const dx = event.clientX - before.clientX;
    const dy = event.clientY - before.clientY;
    moved += Math.abs(dx) + Math.abs(dy);
    if (down.size === 2) {
      const other = [...down.values()].find((one) => one.pointerId !== event.pointerId);
      if (other) {
        const was = Math.hypot(before.clientX - other.clientX, before.clientY - other.clientY);
        const is = Math.hypot(event.clientX - other.clientX, event.clientY - other.clientY);
        const middle = map.point({
          clientX: (event.clientX + other.clientX) / 2,
          clientY: (event.clientY + other.clientY) / 2,
        });
        if (was > 0) map.zoom(is / was, middle.x, middle.y);
      }
    } else if (moved > 3) {
      map.pan(dx, dy);
    }
    down.set(event.pointerId, event);
  });

  canvas.addEventListener("pointerup", (event) => {
    down.delete(event.pointerId);
    if (moved <= 3) on.choose(event);
  });
  canvas.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => on.leave());

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step && event.shiftKey) map.pan(-step[0] * 60, -step[1] * 60);
    else if (step) on.step(step[0], step[1]);
    else if (event.key === "+" || event.key === "=") map.zoom(1.4);
    else if (event.key === "-") map.zoom(1 / 1.4);
    else if (event.key === "0") map.fit();
    else if (event.key === "Enter") on.enter();
    else if (event.key === "Escape") on.escape();
    else return;
    event.preventDefault();
  });
}
