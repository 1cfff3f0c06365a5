"use strict";
/* The chart of a chain of instances: a score ± s.d., P and labels along it, and a cursor. */
probsa.chart = (function () {
  const state = probsa.state;
  const LEFT = 58, RIGHT = 14, TOP = 12, BELOW = 34;
  const BAND = "#7db4e6", LINE = "#a9d1f7", P = "#e8b14a";
  let canvas = null;
  let order = null;     // instances in order of position
  let x = null;         // position of every instance

  function start(element) {
    canvas = element;
    const pick = (event) => {
      const box = canvas.getBoundingClientRect();
      probsa.goTo(nearest(toValue(event.clientX - box.left)));
    };
    canvas.addEventListener("pointerdown", function (event) {
      canvas.setPointerCapture(event.pointerId);
      pick(event);
    });
    canvas.addEventListener("pointermove", function (event) {
      const box = canvas.getBoundingClientRect();
      if (event.buttons & 1) pick(event);
      else probsa.point(nearest(toValue(event.clientX - box.left)));
    });
  }

  function show() {
    const n = state.map.n;
    x = state.map.positions || Float32Array.from({ length: n }, (_, i) => i);
    order = Array.from({ length: n }, (_, i) => i).sort((a, b) => x[a] - x[b] || a - b);
  }

  function span() {
    const low = x[order[0]], high = x[order[order.length - 1]];
    const edge = Math.max((high - low) / Math.max(2 * (order.length - 1), 1), high === low ? 0.5 : 0);
    return [low - edge, high + edge];
  }

  function toPixel(value) {
    const s = span();
    return LEFT + (canvas.clientWidth - LEFT - RIGHT) * (value - s[0]) / (s[1] - s[0]);
  }

  function toValue(pixel) {
    const s = span();
    return s[0] + (s[1] - s[0]) * (pixel - LEFT) / (canvas.clientWidth - LEFT - RIGHT);
  }

  function nearest(value) {
    let best = order[0];
    for (const i of order) if (Math.abs(x[i] - value) < Math.abs(x[best] - value)) best = i;
    return best;
  }

  function draw() {
    if (!canvas || !state.map || state.map.kind !== "chain" || !state.values || !canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "12px system-ui, sans-serif";
    const labels = probsa.valuesOf("labels");
    const probability = probsa.valuesOf("probability");
    const q = probsa.quantity();
    const labelHeight = labels ? 24 : 0;
    const bottom = height - BELOW - labelHeight;
    const both = probability && q && q.key !== "probability";
    const middle = both ? TOP + (bottom - TOP) * 0.6 : bottom;
    marks(c, height - BELOW, TOP);
    const titles = [];
    if (q && q.values) titles.push(plot(c, q.key === "labels" ? probsa.quantity("mean") : q, TOP + 16, middle - (both ? 12 : 4)));
    if (both) titles.push(plot(c, probsa.quantity("probability"), middle + 24, bottom - 4));
    if (labels) {
      squares(c, labels, bottom + 4, height - BELOW - 4);
      legend(c, height - 4);
    }
    cursor(c, TOP, height - BELOW);
    for (const [text, y] of titles) {  // over the lines, which would strike them out
      c.textAlign = "left";
      c.fillStyle = "#1b1d20";
      c.fillRect(LEFT - 1, y - 10, c.measureText(text).width + 4, 14);
      c.fillStyle = "#e6e8eb";
      c.fillText(text, LEFT, y);
    }
  }

  function marks(c, bottom, top) {
    const s = span();
    c.strokeStyle = "#3a3e44";
    c.fillStyle = "#b4b9c0";
    c.textAlign = "center";
    for (const value of probsa.colour.ticks(s[0], s[1])) {
      const at = toPixel(value);
      c.beginPath();
      c.moveTo(at, top);
      c.lineTo(at, bottom + 4);
      c.stroke();
      c.fillText(probsa.colour.text(value, 4), at, bottom + 17);
    }
    const unit = state.map.scan ? "position along the scan (mm)" : state.map.positions ? "position" : "instance, in the order of the bag";
    c.textAlign = "left";
    c.fillText(unit, LEFT, bottom + 31);
  }

  /* Plot a quantity, and return its title and where it stands. */
  function plot(c, q, top, bottom) {
    const deviation = q.key === "mean" ? probsa.valuesOf("deviation") : null;
    let low = Infinity, high = -Infinity;
    for (let i = 0; i < q.values.length; i++) {
      const s = deviation ? deviation[i] : 0;
      low = Math.min(low, q.values[i] - s);
      high = Math.max(high, q.values[i] + s);
    }
    // values beyond the scale of all bags run along its edge, as their colours do
    if (probsa.colour.isGiven(q)) [low, high] = probsa.colour.range(q);
    if (q.signed) { low = Math.min(low, 0); high = Math.max(high, 0); }
    if (low === high) { low -= 0.5; high += 0.5; }
    const y = (v) => bottom - (bottom - top) * Math.max(0, Math.min(1, (v - low) / (high - low)));
    c.textAlign = "right";
    const ticks = q.key === "probability" ? [0, 0.5, 1] : probsa.colour.ticks(low, high);
    for (const value of ticks) {
      c.strokeStyle = value === 0 && q.signed ? "#8a9099" : "#33373c";
      c.beginPath();
      c.moveTo(LEFT, y(value));
      c.lineTo(canvas.clientWidth - RIGHT, y(value));
      c.stroke();
      c.fillStyle = "#b4b9c0";
      c.fillText(probsa.colour.text(value), LEFT - 6, y(value) + 4);
    }
    if (deviation) {
      c.beginPath();
      order.forEach((i, k) => c[k ? "lineTo" : "moveTo"](toPixel(x[i]), y(q.values[i] + deviation[i])));
      order.slice().reverse().forEach((i) => c.lineTo(toPixel(x[i]), y(q.values[i] - deviation[i])));
      c.fillStyle = BAND;
      c.globalAlpha = 0.3;
      c.fill();
      c.globalAlpha = 1;
    }
    c.strokeStyle = c.fillStyle = q.key === "probability" ? P : LINE;
    c.lineWidth = 1.5;
    c.beginPath();
    order.forEach((i, k) => c[k ? "lineTo" : "moveTo"](toPixel(x[i]), y(q.values[i])));
    c.stroke();
    c.lineWidth = 1;
    if (order.length <= 200) for (const i of order) { c.beginPath(); c.arc(toPixel(x[i]), y(q.values[i]), 2.2, 0, 7); c.fill(); }
    return [q.title + (deviation ? " ± s.d." : "") + (q.unit && q.unit !== "probability" ? " (" + q.unit + ")" : ""), top - 6];
  }

  function squares(c, labels, top, bottom) {
    c.textAlign = "right";
    c.fillStyle = "#b4b9c0";
    c.fillText("label", LEFT - 6, (top + bottom) / 2 + 4);
    c.textAlign = "left";
    order.forEach(function (i, k) {
      const before = k ? (x[order[k - 1]] + x[i]) / 2 : span()[0];
      const after = k + 1 < order.length ? (x[order[k + 1]] + x[i]) / 2 : span()[1];
      if (labels[i] !== labels[i]) return;
      c.fillStyle = labels[i] > 0 ? "#D55E00" : "#56B4E9";
      c.fillRect(toPixel(before) + 0.5, top, Math.max(1, toPixel(after) - toPixel(before) - 1), bottom - top);
    });
  }

  /* What the colours of the labels mean, at the right of the line below the chart. */
  function legend(c, y) {
    let right = canvas.clientWidth - RIGHT;
    for (const entry of [["positive", "#D55E00"], ["negative", "#56B4E9"]]) {
      c.textAlign = "right";
      c.fillStyle = "#b4b9c0";
      c.fillText(entry[0], right, y);
      right -= c.measureText(entry[0]).width + 15;
      c.fillStyle = entry[1];
      c.fillRect(right, y - 9, 10, 10);
      right -= 12;
    }
  }

  function cursor(c, top, bottom) {
    const at = toPixel(x[state.slice]);
    c.strokeStyle = "#ffffff";
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(at, top);
    c.lineTo(at, bottom);
    c.stroke();
    c.fillStyle = "#ffffff";
    c.beginPath();
    c.moveTo(at - 6, top - 6);
    c.lineTo(at + 6, top - 6);
    c.lineTo(at, top + 3);
    c.fill();
    c.lineWidth = 1;
  }

  /* The instance that follows another along the chain. */
  function neighbour(instance, by) {
    const at = order.indexOf(instance) + by;
    return order[Math.max(0, Math.min(order.length - 1, at))];
  }

  return { start: start, show: show, draw: draw, neighbour: neighbour, first: () => order[0], last: () => order[order.length - 1] };
})();
