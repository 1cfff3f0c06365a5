"use strict";
/* The map: one cell of a small canvas per patch, drawn over the slide without smoothing. */
probsa.overlay = (function () {
  const state = probsa.state;
  const cells = document.createElement("canvas");
  let shown = null;    // Uint8Array: which patches the threshold keeps
  let image = null;
  let tissue = null;   // Path2D in level-0 pixels
  let outline = null;

  /* The quantity of the threshold: the probability where there is one, else the mean. */
  function thresholdQuantity() {
    const probability = probsa.quantity("probability");
    if (probability && probability.values) return probability;
    const mean = probsa.quantity("mean");
    return mean && mean.values ? mean : null;
  }

  function applyThreshold() {
    const n = state.map.n;
    if (!shown || shown.length !== n) shown = new Uint8Array(n);
    const q = thresholdQuantity();
    if (state.threshold === null || !q) shown.fill(1);
    else for (let i = 0; i < n; i++) shown[i] = q.values[i] >= state.threshold ? 1 : 0;
    outline = null;
  }

  /* Count the patches that the threshold keeps, and their area: that of the cells they cover,
     as far as these lie on the slide. */
  function count() {
    let patches = 0, pixels = 0;
    for (let i = 0; i < shown.length; i++) patches += shown[i];
    const raster = state.map.raster, mpp = state.map.mpp;
    if (!raster || !mpp) return { patches: patches, area: null };
    const size = state.map.size || [Infinity, Infinity];
    const across = along(raster.x0, raster.cell, raster.width, size[0]);
    const down = along(raster.y0, raster.cell, raster.height, size[1]);
    raster.index.forEach(function (row, k) {
      if (row < 0 || !shown[row]) return;
      pixels += across[k % raster.width] * down[Math.floor(k / raster.width)];
    });
    return { patches: patches, area: pixels * Math.pow(mpp / 1000, 2) };
  }

  /* How many pixels of each cell along an axis lie on a slide of this length. */
  function along(first, cell, cells, length) {
    return Array.from({ length: cells }, function (_, k) {
      const low = Math.max(0, first + k * cell), high = Math.min(length, first + (k + 1) * cell);
      return Math.max(0, high - low);
    });
  }

  /* Colour the cells anew: after a change of quantity, range or threshold. */
  function colour() {
    const raster = state.map && state.map.raster;
    const q = probsa.quantity();
    if (!raster) return;
    if (cells.width !== raster.width || cells.height !== raster.height || !image) {
      cells.width = raster.width;
      cells.height = raster.height;
      image = new ImageData(raster.width, raster.height);
    }
    const out = new Uint32Array(image.data.buffer);
    const index = raster.index;
    if (!q || !q.values) out.fill(0);
    else {
      const colours = probsa.colour.ofPatches(q, shown);
      const none = colours.length - 1;
      for (let i = 0; i < index.length; i++) out[i] = colours[index[i] < 0 ? none : index[i]];
    }
    cells.getContext("2d").putImageData(image, 0, 0);
  }

  function show() {
    image = null;
    tissue = null;
    outline = null;
    applyThreshold();
    colour();
  }

  function tissuePath() {
    if (tissue) return tissue;
    tissue = new Path2D();
    for (const ring of state.map.tissue || []) {
      tissue.moveTo(ring[0], ring[1]);
      for (let i = 2; i < ring.length; i += 2) tissue.lineTo(ring[i], ring[i + 1]);
      tissue.closePath();
    }
    return tissue;
  }

  /* The edges between cells that are shown and cells that are not. */
  function outlinePath() {
    if (outline) return outline;
    outline = new Path2D();
    const r = state.map.raster;
    const inside = (x, y) => {
      if (x < 0 || y < 0 || x >= r.width || y >= r.height) return false;
      const row = r.index[y * r.width + x];
      return row >= 0 && shown[row] === 1;
    };
    const line = (x1, y1, x2, y2) => {
      outline.moveTo(r.x0 + x1 * r.cell, r.y0 + y1 * r.cell);
      outline.lineTo(r.x0 + x2 * r.cell, r.y0 + y2 * r.cell);
    };
    for (let y = 0; y <= r.height; y++) {
      for (let x = 0; x <= r.width; x++) {
        const own = inside(x, y);
        if (own !== inside(x - 1, y)) line(x, y, x, y + 1);
        if (own !== inside(x, y - 1)) line(x, y, x + 1, y);
      }
    }
    return outline;
  }

  function drawCells(context, place, alpha) {
    const raster = state.map.raster;
    const low = place(raster.x0, raster.y0);
    const high = place(raster.x0 + raster.width * raster.cell, raster.y0 + raster.height * raster.cell);
    context.save();
    context.imageSmoothingEnabled = false;
    if (state.map.slide) {  // patches may be padded beyond the edge of the slide
      const first = place(0, 0), last = place(state.map.size[0], state.map.size[1]);
      context.beginPath();
      context.rect(first.x, first.y, last.x - first.x, last.y - first.y);
      context.clip();
    }
    context.globalAlpha = alpha;
    context.drawImage(cells, low.x, low.y, high.x - low.x, high.y - low.y);
    context.restore();
  }

  /* Draw the cells in grey on the canvas that takes their saturation from the slide. */
  function drawGrey(context, place) {
    if (!state.overlay || state.opacity === 0) return;
    drawCells(context, place, 1);
    context.save();
    context.globalCompositeOperation = "source-in";
    context.fillStyle = "#808080";
    context.fillRect(0, 0, context.canvas.width, context.canvas.height);
    context.restore();
  }

  /* Draw everything over the slide. `place` turns level-0 pixels into pixels of the canvas. */
  function draw(context, place) {
    const map = state.map;
    const origin = place(0, 0), unit = place(1000, 0);
    const scale = (unit.x - origin.x) / 1000;
    if (state.overlay) drawCells(context, place, map.slide ? state.opacity : 1);
    const stroke = (path, colour, width) => {
      context.save();
      context.translate(origin.x, origin.y);
      context.scale(scale, scale);
      context.lineJoin = "round";
      context.strokeStyle = "rgba(255, 255, 255, 0.85)";
      context.lineWidth = (width + 2) / scale;
      context.stroke(path);
      context.strokeStyle = colour;
      context.lineWidth = width / scale;
      context.stroke(path);
      context.restore();
    };
    const ratio = window.devicePixelRatio || 1;
    if (state.tissue) stroke(tissuePath(), "#0b6b3a", 1.5 * ratio);
    if (state.outline) stroke(outlinePath(), "#111", 1.5 * ratio);
    if (state.patch >= 0) {
      const at = corner(state.patch);
      const box = new Path2D();
      box.rect(at[0], at[1], map.side, map.side);
      stroke(box, "#111", 1.5 * ratio);
    }
  }

  function corner(patch) {
    return [state.map.corners[2 * patch], state.map.corners[2 * patch + 1]];
  }

  /* The patch that is drawn at a position in level-0 pixels; −1 for none. */
  function patchAt(x, y) {
    const r = state.map.raster;
    const column = Math.floor((x - r.x0) / r.cell), row = Math.floor((y - r.y0) / r.cell);
    if (column < 0 || row < 0 || column >= r.width || row >= r.height) return -1;
    return r.index[row * r.width + column];
  }

  /* What is known of a patch, as one line. */
  function describe(patch) {
    const format = probsa.colour.text;
    const parts = [];
    const map = state.map;
    const labels = probsa.valuesOf("labels");
    if (map.corners) {
      const at = corner(patch);
      let where = "patch " + patch.toLocaleString("en-US") + " · x " + Math.round(at[0]).toLocaleString("en-US") + ", y " + Math.round(at[1]).toLocaleString("en-US") + " px";
      if (map.mpp) where += " (" + (at[0] * map.mpp / 1000).toFixed(3) + ", " + (at[1] * map.mpp / 1000).toFixed(3) + " mm)";
      parts.push(where);
    } else if (map.positions) parts.push((map.scan ? "slice at " : "position ") + format(map.positions[patch], 5) + (map.scan ? " mm" : ""));
    else parts.push("instance " + patch);
    const mean = probsa.quantity("mean"), deviation = probsa.valuesOf("deviation");
    if (mean && mean.values) parts.push(mean.title + " " + format(mean.values[patch], 4) + (deviation ? " ± " + format(deviation[patch], 3) : "") + " " + mean.unit);
    const probability = probsa.valuesOf("probability");
    if (probability) parts.push("P " + probsa.colour.value(probsa.quantity("probability"), probability[patch]));
    const q = probsa.quantity();
    if (q && q.values && !["mean", "deviation", "probability", "labels"].includes(q.key)) parts.push(q.title + " " + format(q.values[patch], 3));
    if (labels && labels[patch] === labels[patch]) parts.push("label " + (labels[patch] > 0 ? "positive" : "negative"));
    return parts.join(" · ");
  }

  return {
    applyThreshold: applyThreshold, colour: colour, count: count, describe: describe, draw: draw, drawGrey: drawGrey,
    patchAt: patchAt, corner: corner, show: show, thresholdQuantity: thresholdQuantity,
    pixels: () => image && image.data,
  };
})();
