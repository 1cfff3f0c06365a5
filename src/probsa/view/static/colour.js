"use strict";
/* Numbers as text, colours of values, and the colour bar. */
probsa.colour = (function () {
  const state = probsa.state;
  let tables = {};
  let limits = null;  // of all bags

  function start(given) { tables = given; }

  function text(value, digits) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    let shown = size !== 0 && (size < 0.001 || size >= 1e6)
      ? value.toExponential((digits || 3) - 1)
      : Number(value.toPrecision(digits || 3)).toLocaleString("en-US", { maximumFractionDigits: 8 });
    return shown.replace(/-/g, "−");
  }

  /* A probability to two significant digits; with more if it would look like another one. */
  function probability(given, beside) {
    const said = rounded(given);
    if (!Number.isFinite(beside) || given === beside || said !== rounded(beside)) return said;
    for (const digits of [3, 4]) {
      if (given.toFixed(digits) !== beside.toFixed(digits)) return given.toFixed(digits);
    }
    return said;
  }

  /* Rounding must not say certain. */
  function rounded(given) {
    if (given === null || !Number.isFinite(given)) return "–";
    if (given > 0.9995) return "> 0.999";
    if (given < 0.0005) return "< 0.001";
    if (given < 0.1) return given.toPrecision(2);
    return given.toFixed(given < 0.995 ? 2 : given < 0.9985 ? 3 : 4);
  }

  function value(q, given, digits) {
    if (q.unit !== "probability" || q.key.startsWith("difference")) return text(given, digits);
    return probability(given);
  }

  /* The range of the colours of a quantity: the user's, that of all bags, or that of this bag. */
  function range(q) {
    if (!q || !q.values) return [0, 1];
    if (q.fixed) return q.range;
    if (state.ranges[q.key]) return state.ranges[q.key];
    if (onCommonScale(q)) {
      const all = limits[q.key];
      const most = Math.max(Math.abs(all[0]), Math.abs(all[1]));
      return q.signed ? [-most, most] : all;
    }
    return q.range;
  }

  /* One colour for values that are almost equal: the whole scale would show more than there is. */
  function isFlat(q) { return Boolean(flatness(q)); }

  /* Why all patches have one colour; on the scale of all bags, since they do not reach a tenth of it. */
  function flatness(q) {
    if (state.ranges[q.key] || q.fixed) return "";
    if (!onCommonScale(q)) return q.flat ? "the map is " + q.flat : "";
    const most = Math.max(Math.abs(q.range[0]), Math.abs(q.range[1]));
    const small = q.signed && most < 0.1 * range(q)[1];
    return small ? "no value of this bag reaches a tenth of the scale of all bags (the largest is " + text(most, 2) + ")" : "";
  }

  function onCommonScale(q) { return state.scale === "all" && Boolean(limits && limits[q.key]); }

  /* Whether the range is another than that of this bag. */
  function isGiven(q) { return q.fixed || Boolean(state.ranges[q.key]) || onCommonScale(q); }

  function step(q, bounds, value) {
    if (isFlat(q)) return 128;
    const share = (value - bounds[0]) / (bounds[1] - bounds[0]);
    return Math.max(0, Math.min(255, Math.round(255 * share)));
  }

  function rgb(q, value) {
    const at = 3 * step(q, range(q), value);
    const table = tables[q.colours];
    return [table[at], table[at + 1], table[at + 2]];
  }

  function css(q, value) { return "rgb(" + rgb(q, value).join(",") + ")"; }

  /* RGBA of every patch; the last entry, for cells without a patch, is transparent. */
  function ofPatches(q, shown) {
    const values = q.values;
    const out = new Uint32Array(values.length + 1);
    const bytes = new Uint8Array(out.buffer);
    const table = tables[q.colours];
    const bounds = range(q);
    const flat = isFlat(q);
    const factor = 255 / (bounds[1] - bounds[0]);
    const spread = state.fade && q.key !== "deviation" ? probsa.quantity("deviation") : null;
    const fade = spread && spread.values ? spread : null;
    const fadeBy = fade ? 0.85 / (fade.range[1] - fade.range[0] || 1) : 0;
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (value !== value || !shown[i]) continue;
      let k = flat ? 128 : Math.round((value - bounds[0]) * factor);
      k = 3 * (k < 0 ? 0 : k > 255 ? 255 : k);
      bytes[4 * i] = table[k];
      bytes[4 * i + 1] = table[k + 1];
      bytes[4 * i + 2] = table[k + 2];
      bytes[4 * i + 3] = fade ? Math.round(255 * (1 - fadeBy * (fade.values[i] - fade.range[0]))) : 255;
    }
    return out;
  }

  /* Tick positions at round numbers inside the range, at most six. */
  function ticks(low, high) {
    const raw = (high - low) / 4;
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const unit = [1, 2, 2.5, 5, 10].map((v) => v * power).find((v) => v >= raw) || raw;
    const found = [];
    for (let v = Math.ceil(low / unit - 1e-9) * unit; v <= high + 1e-9 * unit; v += unit) found.push(Math.abs(v) < 1e-9 * unit ? 0 : v);
    return found;
  }

  function draw() {
    const q = probsa.quantity();
    const section = probsa.byId("colour-section");
    section.hidden = !q || !q.values || state.map.kind !== "slide";
    if (section.hidden) return;
    const bounds = range(q);
    const labels = q.key === "labels";
    probsa.byId("bar-title").textContent = q.title + (q.unit && q.unit !== "probability" ? " (" + q.unit + ")" : "");
    const canvas = probsa.byId("bar-canvas");
    const context = canvas.getContext("2d");
    const image = context.createImageData(256, 1);
    const flat = isFlat(q);
    for (let i = 0; i < 256; i++) {
      const at = 3 * (flat && !onCommonScale(q) ? 128 : labels ? (i < 128 ? 0 : 255) : i);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = tables[q.colours][at + c];
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    let below = false, above = false;
    for (const value of q.values) {
      if (value < bounds[0] - 1e-6 * (bounds[1] - bounds[0])) below = true;
      if (value > bounds[1] + 1e-6 * (bounds[1] - bounds[0])) above = true;
    }
    end("bar-below", below && !flat, q, bounds[0], "Some values are lower.");
    end("bar-above", above && !flat, q, bounds[1], "Some values are higher.");
    const holder = probsa.byId("bar-ticks");
    holder.textContent = "";
    const marks = labels ? [[0.25, "negative"], [0.75, "positive"]]
      : flat && !onCommonScale(q) ? [[0.5, text((bounds[0] + bounds[1]) / 2)]]
        : ticks(bounds[0], bounds[1]).map((v) => [(v - bounds[0]) / (bounds[1] - bounds[0]), text(v)]);
    for (const mark of marks) {
      const element = probsa.make("span", { text: mark[1] });
      element.style.left = 100 * mark[0] + "%";
      holder.appendChild(element);
    }
    const notes = [];
    if (flat) notes.push("One colour: " + flatness(q) + ".");
    if (q.key === "difference" || q.key === "difference-probability") notes.push("Brown: the other model is higher; teal: this one is.");
    else if (q.signed) notes.push(state.words.up ? "Red " + named(state.words.up) + ", blue " + state.words.down + "." : "Red speaks for " + subject() + ", blue against it.");
    if (state.fade && probsa.valuesOf("deviation")) notes.push("Patches fade with their standard deviation.");
    probsa.byId("bar-note").textContent = notes.join(" ");
  }

  /* What positive values do, with the name of the finding, step or interval if there are several. */
  function named(up) {
    return state.map.classes.length ? up + " (“" + state.map.classes[state.column] + "”)" : up;
  }

  /* The class of signed values. */
  function subject() {
    const names = state.map.classes.length ? state.map.classes : state.classes;
    const name = state.map.classes.length ? names[state.column] : names.length === 2 ? names[1] : "";
    return name ? "class “" + name + "”" : "the class";
  }

  function end(id, shown, q, value, title) {
    const element = probsa.byId(id);
    element.classList.toggle("shown", shown);
    element.style.color = css(q, value);
    element.title = shown ? title : "";
  }

  function loadLimits() {
    return limits ? Promise.resolve() : probsa.load("limits").then((found) => { limits = found; });
  }

  return {
    start: start, text: text, value: value, probability: probability, range: range, css: css, ofPatches: ofPatches, ticks: ticks,
    draw: draw, loadLimits: loadLimits, isFlat: isFlat, isGiven: isGiven,
  };
})();
