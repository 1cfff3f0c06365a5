"use strict";
/* The controls beside the slide, and the pictures of patches. */
probsa.panel = (function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const make = probsa.make;
  const STEPS = 1000;

  function start() {
    byId("class").addEventListener("change", () => probsa.showClass(Number(byId("class").value)));
    byId("low").addEventListener("input", () => moveRange("low"));
    byId("high").addEventListener("input", () => moveRange("high"));
    byId("scale").addEventListener("change", function () {
      state.scale = byId("scale").value;
      state.ranges = {};
      const ready = state.scale === "all" ? probsa.colour.loadLimits() : Promise.resolve();
      ready.then(probsa.recolour);
    });
    byId("opacity").addEventListener("input", () => setOpacity(Number(byId("opacity").value) / 100));
    byId("threshold").addEventListener("input", () => setThreshold(Number(byId("threshold").value) / STEPS));
    for (const id of ["overlay", "grey", "tissue", "outline", "fade"]) {
      byId(id).addEventListener("change", function () {
        state[id] = byId(id).checked;
        if (id === "fade") probsa.recolour();
        else probsa.viewer.draw();
      });
    }
    setOpacity(state.opacity);
  }

  /* Show the controls of a bag whose values have been loaded. */
  function show() {
    const choice = byId("class-choice");
    choice.hidden = !state.map.classes.length;
    choice.querySelector("label").textContent = state.words.column;
    const select = byId("class");
    select.textContent = "";
    state.map.classes.forEach((name, k) => select.appendChild(make("option", { text: name, attributes: { value: String(k) } })));
    select.value = String(state.column);
    const holder = byId("quantities");
    holder.textContent = "";
    state.values.quantities.forEach(function (q, i) {
      const input = make("input", { attributes: { type: "radio", name: "quantity", value: q.key, id: "q-" + q.key } });
      input.disabled = !q.values;
      input.checked = q.key === state.quantity;
      input.addEventListener("change", () => probsa.showQuantity(q.key));
      const label = make("label", { attributes: { for: input.id } }, [make("kbd", { text: i < 9 ? String(i + 1) : "" }), make("span", { text: q.title })]);
      const line = make("div", { class: "choice" + (q.values ? "" : " missing"), title: q.reason || "" }, [input, label]);
      if (!q.values) line.appendChild(make("p", { class: "note", text: q.reason }));
      holder.appendChild(line);
    });
    if (state.values.difference) {
      holder.appendChild(make("p", { class: "note", text: "No difference: " + state.values.difference }));
    }
    for (const id of ["tissue", "outline", "fade", "overlay", "grey"]) byId(id).checked = state[id];
    const slide = state.map.kind === "slide";
    byId("options").hidden = !slide;
    byId("opacity").parentElement.hidden = !state.map.slide;  // else the colours are those of the bar
    const contours = slide && state.map.tissue.length > 0;
    byId("grey").disabled = !state.map.slide;
    byId("tissue").disabled = !contours;
    byId("tissue").parentElement.title = contours ? "" : "probsa patch stored no tissue for this slide.";
    byId("fade").disabled = !probsa.valuesOf("deviation");
    pictures();
    update();
  }

  /* Redraw what depends on the quantity, the range or the threshold. */
  function update() {
    const q = probsa.quantity();
    const chosen = byId("q-" + state.quantity);
    if (chosen) chosen.checked = true;
    probsa.colour.draw();
    byId("range-controls").hidden = !q || !q.values || q.fixed;
    if (q && q.values && !q.fixed) {
      const span = extent(q), bounds = probsa.colour.range(q);
      const at = (v) => String(Math.round(STEPS * (v - span[0]) / (span[1] - span[0])));
      byId("low").value = at(bounds[0]);
      byId("high").value = at(bounds[1]);
      byId("range-text").textContent = probsa.colour.text(bounds[0]) + " to " + probsa.colour.text(bounds[1]);
      byId("low").setAttribute("aria-valuetext", probsa.colour.text(bounds[0]));
      byId("high").setAttribute("aria-valuetext", probsa.colour.text(bounds[1]));
    }
    threshold();
  }

  /* What the handles can reach: the range of the bag and the present range. */
  function extent(q) {
    const bounds = probsa.colour.range(q);
    return [Math.min(q.range[0], bounds[0]), Math.max(q.range[1], bounds[1])];
  }

  function moveRange(which) {
    const q = probsa.quantity();
    const span = extent(q);
    const value = (id) => span[0] + (span[1] - span[0]) * Number(byId(id).value) / STEPS;
    let low = value("low"), high = value("high");
    const least = (span[1] - span[0]) / STEPS;
    if (high - low < least) {
      if (which === "low") low = high - least;
      else high = low + least;
    }
    if (q.signed) {  // symmetric about 0, so that white stays 0
      const most = Math.max(least, which === "low" ? -low : high);
      low = -most;
      high = most;
    }
    state.ranges[q.key] = [low, high];
    probsa.recolour();
  }

  function setOpacity(value) {
    state.opacity = Math.max(0, Math.min(1, value));
    byId("opacity").value = String(Math.round(100 * state.opacity));
    byId("opacity-text").textContent = Math.round(100 * state.opacity) + " %";
    if (state.map) probsa.viewer.draw();
  }

  function thresholdRange(q) { return q.key === "probability" ? [0, 1] : q.range; }

  /* Hide patches below a share of the range of the threshold; 0 hides none. */
  function setThreshold(share) {
    const q = probsa.overlay.thresholdQuantity();
    if (!q) return;
    const span = thresholdRange(q);
    const kept = Math.max(0, Math.min(1, share));
    state.threshold = kept <= 0 ? null : span[0] + kept * (span[1] - span[0]);
    probsa.overlay.applyThreshold();
    probsa.recolour();
  }

  function moveThreshold(by) {
    setThreshold(Number(byId("threshold").value) / STEPS + by);
  }

  function threshold() {
    const q = probsa.overlay.thresholdQuantity();
    const slide = state.map.kind === "slide";
    byId("threshold-row").hidden = !q || !slide;
    byId("area").hidden = !q || !slide;
    if (!q || !slide) return;
    const span = thresholdRange(q);
    const name = q.key === "probability" ? "P" : q.title;
    byId("threshold-label").textContent = q.key === "probability" ? "P at least" : "At least";
    byId("threshold-label").title = q.title;
    byId("threshold").value = String(state.threshold === null ? 0 : Math.round(STEPS * (state.threshold - span[0]) / (span[1] - span[0])));
    byId("threshold-text").textContent = state.threshold === null ? "off" : probsa.colour.text(state.threshold);
    const found = probsa.overlay.count();
    const count = found.patches.toLocaleString("en-US") + " of " + state.map.n.toLocaleString("en-US") + " patches";
    const area = found.area === null ? "" : ", " + probsa.colour.text(found.area) + " mm²";
    byId("area").textContent = (state.threshold === null ? "" : name + " ≥ " + probsa.colour.text(state.threshold) + ": ") + count + area;
  }

  /* Where an instance without a picture lies. */
  function where(row) {
    const x = state.map.positions;
    if (state.map.corners) return probsa.overlay.corner(row).map(Math.round).join(", ");
    return x ? probsa.colour.text(x[row], 4) + (state.map.scan ? " mm" : "") : "no. " + row;
  }

  /* The patches with the most and the least certain values. */
  function pictures() {
    const holder = byId("gallery");
    holder.textContent = "";
    if (state.map.kind === "slide" && !state.map.slide) holder.appendChild(make("p", { class: "note", text: "There is no image of this bag: patches are listed by their x, y in pixels." }));
    for (const list of state.values.galleries) {
      const q = probsa.quantity(list.key);
      const grid = make("div", { class: state.map.slide ? "pictures" : "places" });
      for (const row of list.rows) {
        const value = probsa.colour.value(q, q.values[row], 3);
        const button = make("button", { title: probsa.overlay.describe(row) });
        if (state.map.slide) {
          button.appendChild(make("img", { attributes: { alt: "patch " + row, loading: "lazy", src: "data/patch/" + state.bag + "_" + row + ".jpg" } }));
        } else button.appendChild(make("b", { text: where(row) }));
        button.appendChild(make("span", { text: value }));
        button.addEventListener("click", () => probsa.goTo(row));
        grid.appendChild(button);
      }
      holder.appendChild(make("h3", { text: list.title }));
      if (!list.rows.length) grid.appendChild(make("p", { class: "note", text: "None: every value is far from 0." }));
      holder.appendChild(grid);
    }
  }

  return { start: start, show: show, update: update, setOpacity: setOpacity, moveThreshold: moveThreshold, setThreshold: setThreshold };
})();
