"use strict";
/* Slices of a CT scan with a window, above the chart along the scan; or the chart and a table. */
probsa.ct = (function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const make = probsa.make;
  const MOST_ROWS = 500;
  let picture = null, holder = null, chart = null, table = null, notes = null;
  let hounsfield = null;
  let window_ = { level: 40, width: 80 };
  let wanted = 0;
  let turned = 0;

  function start() {
    picture = make("canvas", { attributes: { id: "slice", role: "img", "aria-label": "Slice of the scan" } });
    holder = make("div", { attributes: { id: "slice-box" } }, [picture, make("span", { class: "side left", text: "R" }), make("span", { class: "side right", text: "L" }), make("span", { class: "corner", attributes: { id: "slice-text" } })]);
    chart = make("canvas", { attributes: { id: "chart", tabindex: "0", role: "slider", "aria-label": "Position along the scan" } });
    table = make("div", { attributes: { id: "instances" } });
    notes = make("p", { class: "note", attributes: { id: "scan-notes" } });
    [holder, notes, chart, table].forEach((element) => byId("ct").appendChild(element));
    probsa.chart.start(chart);
    new ResizeObserver(function () {
      fit();
      probsa.chart.draw();
    }).observe(byId("ct"));
    holder.addEventListener("wheel", function (event) {
      event.preventDefault();
      turned += event.deltaY;
      if (Math.abs(turned) < 30) return;
      move(turned > 0 ? 1 : -1);
      turned = 0;
    }, { passive: false });
    byId("preset").addEventListener("change", function () {
      const chosen = state.map.scan.windows[byId("preset").value];
      if (chosen) setWindow(chosen[0], chosen[1]);
    });
    for (const id of ["level", "width"]) {
      byId(id).addEventListener("input", () => setWindow(Number(byId("level").value), Number(byId("width").value)));
    }
  }

  function show() {
    const map = state.map;
    probsa.chart.show();
    holder.hidden = !map.scan;
    table.hidden = Boolean(map.scan);
    byId("window-section").hidden = !map.scan;
    byId("slice-values").textContent = "";
    notes.textContent = map.scan ? map.scan.notes.concat(map.scan.reduced || []).join(" ") : "";
    notes.hidden = !notes.textContent;
    for (const side of holder.querySelectorAll(".side")) side.hidden = !map.scan || !map.scan.sides;
    if (map.scan) {
      const select = byId("preset");
      select.textContent = "";
      for (const name of Object.keys(map.scan.windows)) {
        const w = map.scan.windows[name];
        select.appendChild(make("option", { text: name + " (" + w[0] + " : " + w[1] + ")", attributes: { value: name } }));
      }
      select.appendChild(make("option", { text: "own", attributes: { value: "" } }));
      picture.width = map.scan.width;
      picture.height = map.scan.height;
      fit();
      setWindow(window_.level, window_.width);
    } else rows();
    state.slice = state.slice >= 0 && state.slice < map.n ? state.slice : 0;
  }

  /* The largest box of the scan's shape that fits. */
  function fit() {
    if (!state.map || !state.map.scan) return;
    const aspect = state.map.scan.aspect;
    const box = byId("ct");
    const height = Math.max(160, box.clientHeight - chart.clientHeight - (notes.hidden ? 0 : notes.offsetHeight) - 30);
    const width = Math.min(box.clientWidth - 8, height * aspect);
    holder.style.width = width + "px";
    holder.style.height = width / aspect + "px";
  }

  function setWindow(level, width) {
    window_ = { level: level, width: Math.max(1, width) };
    byId("level").value = String(level);
    byId("width").value = String(width);
    byId("level-text").textContent = probsa.colour.text(level);
    byId("width-text").textContent = probsa.colour.text(width);
    const windows = state.map.scan.windows;
    const name = Object.keys(windows).find((k) => windows[k][0] === level && windows[k][1] === width);
    byId("preset").value = name || "";
    paint();
  }

  /* DICOM's LINEAR_EXACT, as probsa.slides.windowed has it. */
  function paint() {
    if (!hounsfield) return;
    const context = picture.getContext("2d");
    const image = context.createImageData(picture.width, picture.height);
    const pixels = new Uint32Array(image.data.buffer);
    const low = window_.level - window_.width / 2, width = window_.width;
    for (let i = 0; i < hounsfield.length; i++) {
      const above = Math.min(width, Math.max(0, hounsfield[i] - low));
      pixels[i] = 0xff000000 | (0x010101 * roundHalfEven(255 * above / width));
    }
    context.putImageData(image, 0, 0);
  }

  function roundHalfEven(v) {
    const r = Math.round(v);
    return v - Math.floor(v) === 0.5 && r % 2 ? r - 1 : r;
  }

  /* Show the slice of an instance. */
  function showSlice(instance) {
    state.slice = instance;
    probsa.point(instance);
    probsa.chart.draw();
    const text = probsa.overlay.describe(instance);
    chart.setAttribute("aria-valuenow", String(instance));
    chart.setAttribute("aria-valuemin", "0");
    chart.setAttribute("aria-valuemax", String(state.map.n - 1));
    chart.setAttribute("aria-valuetext", text);
    const scan = state.map.scan;
    if (!scan) return Promise.resolve();
    const i = scan.slices[instance], bag = state.bag;
    const ticket = ++wanted;
    return probsa.load("slice/" + bag + "_" + i).then(function (values) {
      if (ticket !== wanted) return;
      hounsfield = values;
      paint();
      byId("slice-text").textContent = "slice " + (i + 1) + " of " + scan.count + ", " + probsa.colour.text(scan.positions[i], 5) + " mm";
      picture.dataset.slice = String(i);
      for (const next of [instance - 1, instance + 1]) {  // neighbours, for the wheel
        if (next >= 0 && next < state.map.n) probsa.load("slice/" + bag + "_" + scan.slices[next]).catch(() => {});
      }
    });
  }

  function move(by) {
    probsa.goTo(by === -Infinity ? probsa.chart.first() : by === Infinity ? probsa.chart.last() : probsa.chart.neighbour(state.slice, by));
  }

  /* The instances of a bag without pictures, by the quantity that is shown. */
  function rows() {
    table.textContent = "";
    const q = probsa.quantity();
    if (!q || !q.values) return;
    const columns = state.values.quantities.filter((v) => v.values);
    const sorted = Array.from(q.values.keys()).sort((a, b) => q.values[b] - q.values[a]).slice(0, MOST_ROWS);
    const head = make("tr", {}, [make("th", { text: state.map.positions ? "position" : "instance" })].concat(columns.map((v) => make("th", { text: v.title }))));
    const body = make("tbody");
    for (const i of sorted) {
      const button = make("button", { text: state.map.positions ? probsa.colour.text(state.map.positions[i], 5) : String(i) });
      button.addEventListener("click", () => probsa.goTo(i));
      const cells = columns.map((v) => make("td", { text: v.key === "labels" ? (v.values[i] > 0 ? "positive" : v.values[i] === 0 ? "negative" : "–") : probsa.colour.value(v, v.values[i]) }));
      body.appendChild(make("tr", {}, [make("td", {}, [button])].concat(cells)));
    }
    const more = state.map.n > MOST_ROWS ? "The " + MOST_ROWS + " instances with the highest value." : "";
    table.appendChild(make("p", { class: "note", text: more }));
    table.appendChild(make("table", {}, [make("thead", {}, [head]), body]));
  }

  function update() {
    probsa.chart.draw();
    if (state.map && state.map.kind === "chain" && !state.map.scan) rows();
  }

  return { start: start, show: show, showSlice: showSlice, move: move, update: update, fit: fit };
})();
