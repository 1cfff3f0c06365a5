"use strict";
/* The keyboard. */
probsa.keys = (function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const make = probsa.make;
  const HELP = [
    ["← → ↑ ↓", "move the slide; ↑ ↓: previous and next slice of a scan"],
    ["+ −", "zoom"],
    ["0", "whole slide"],
    ["Shift + arrows", "move the patch cursor and read its values"],
    ["1 … 9", "quantity"],
    ["h", "hide or show the map"],
    ["[ ]", "opacity"],
    [", .", "threshold"],
    ["d", "difference of two models, and back"],
    ["g", "grey tissue below the map, or its stain"],
    ["c", "tissue contours"],
    ["o", "outline of the patches that are shown"],
    ["j k", "next and previous bag of the list"],
    ["Home End", "first and last slice of a scan"],
    ["?", "these keys"],
  ];
  let before = "mean";

  function start() {
    for (const line of HELP) {
      byId("help-keys").appendChild(make("kbd", { text: line[0] }));
      byId("help-keys").appendChild(make("span", { text: line[1] }));
    }
    byId("show-help").addEventListener("click", () => byId("help").showModal());
    byId("show-facts").addEventListener("click", () => byId("facts").showModal());
    document.addEventListener("keydown", onKey);
  }

  function onKey(event) {
    const target = event.target;
    const inside = (selector) => target instanceof Element && target.closest(selector);
    const moving = /^(Arrow|Page|Home|End)/.test(event.key);
    const typing = inside("input[type=search], select, dialog") || (moving && inside("input[type=range], input[type=radio]"));
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && target === byId("search")) target.blur();
    if (typing) return;
    if (act(event.key, event.shiftKey)) event.preventDefault();
  }

  /* Do what a key means; return whether it means something. */
  function act(key, shift) {
    if (key === "?") { byId("help").showModal(); return true; }
    if (key === "j" || key === "k") { probsa.list.move(key === "j" ? 1 : -1); return true; }
    if (!state.map || !state.values) return false;
    if (/^[1-9]$/.test(key)) return quantity(state.values.quantities[Number(key) - 1]);
    if (key === "d") return difference();
    const slide = state.map.kind === "slide";
    return slide ? onSlide(key, shift) : onChain(key);
  }

  function quantity(q) {
    if (!q || !q.values) return false;
    probsa.showQuantity(q.key);
    return true;
  }

  function difference() {
    if (state.quantity === "difference") return quantity(probsa.quantity(before) || probsa.quantity("mean"));
    before = state.quantity;
    return quantity(probsa.quantity("difference"));
  }

  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function onSlide(key, shift) {
    const viewer = probsa.viewer;
    if (MOVES[key] && shift) return cursor(MOVES[key]);
    if (MOVES[key]) viewer.pan(0.12 * MOVES[key][0], 0.12 * MOVES[key][1]);
    else if (key === "+" || key === "=") viewer.zoom(1.4);
    else if (key === "-" || key === "_") viewer.zoom(1 / 1.4);
    else if (key === "0") viewer.home();
    else if (key === "h") toggle("overlay");
    else if (key === "g") toggle("grey");
    else if (key === "c") toggle("tissue");
    else if (key === "o") toggle("outline");
    else if (key === "[" || key === "]") probsa.panel.setOpacity(state.opacity + (key === "]" ? 0.05 : -0.05));
    else if (key === "," || key === ".") probsa.panel.moveThreshold(key === "." ? 0.05 : -0.05);
    else return false;
    return true;
  }

  function onChain(key) {
    if (key === "ArrowDown" || key === "ArrowRight") probsa.ct.move(1);
    else if (key === "ArrowUp" || key === "ArrowLeft") probsa.ct.move(-1);
    else if (key === "PageDown") probsa.ct.move(10);
    else if (key === "PageUp") probsa.ct.move(-10);
    else if (key === "Home") probsa.ct.move(-Infinity);
    else if (key === "End") probsa.ct.move(Infinity);
    else return false;
    return true;
  }

  function toggle(id) {
    const box = byId(id);
    if (!box.disabled) box.click();
  }

  /* Move the patch cursor to the nearest patch in a direction; begin at the middle of the window. */
  function cursor(by) {
    const raster = state.map.raster;
    let patch = state.patch;
    const middle = probsa.viewer.place();
    const at = patch >= 0 ? probsa.overlay.corner(patch) : [middle[0] - state.map.side / 2, middle[1] - state.map.side / 2];
    let x = at[0] + state.map.side / 2, y = at[1] + state.map.side / 2;
    const limit = raster.width + raster.height;
    for (let k = 0; k < limit; k++) {
      if (patch >= 0 || k > 0) { x += by[0] * raster.cell; y += by[1] * raster.cell; }
      const found = probsa.overlay.patchAt(x, y);
      if (found >= 0 && found !== patch) { probsa.point(found); return true; }
    }
    return true;
  }

  return { start: start };
})();
