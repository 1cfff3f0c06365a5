"use strict";
/* What happens when a bag, a quantity or a patch is chosen. */
(function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const make = probsa.make;
  let ticket = 0;
  probsa.UNLIKE = "The features of this bag are further from the training bags than those of any validation bag.";

  /* Show a bag; `place` may hold a quantity, a class, a range, a slice and a position. */
  probsa.choose = function (bag, place) {
    const row = state.rows[bag];
    const own = ++ticket;
    state.bag = bag;
    state.map = null;
    state.values = null;
    state.ranges = {};
    state.patch = -1;
    state.failedTiles = 0;
    delete document.documentElement.dataset.ready;
    probsa.list.mark();
    heading(row);
    byId("readout").textContent = "";
    byId("remark").textContent = byId("warning").textContent = "";
    if (row.failed) return empty(row.failed);
    const given = place || {};
    const known = (state.failed || {})[row.name];
    if (known) return empty(known);
    say("Loading…");
    // most models have one class of values: ask for it while the geometry is loaded
    if (!given.column) probsa.load("values/" + bag + "_0").catch(() => {});
    const scale = state.scale === "all" ? probsa.colour.loadLimits().catch(() => {}) : null;
    return Promise.all([probsa.load("map/" + bag), scale]).then(function ([map]) {
      const asked = given.column;
      const column = asked !== null && asked !== undefined && asked >= 0 && asked < Math.max(1, map.classes.length) ? asked : map.column;
      return probsa.load("values/" + bag + "_" + column).then((values) => [map, values, column]);
    }).then(function (loaded) {
      if (own !== ticket) return;
      [state.map, state.values, state.column] = loaded;
      probsa.forget(bag);
      if (given.quantity) state.quantity = given.quantity;
      if (!probsa.valuesOf(state.quantity)) state.quantity = "mean";
      if (given.range && !probsa.quantity().fixed && given.range[0] < given.range[1]) state.ranges[state.quantity] = given.range;
      if (state.threshold !== null) state.threshold = null;
      show(given);
    }).catch(function (error) {
      if (own === ticket) empty(error.message);
    });
  };

  /* Show no bag, and why. */
  probsa.chooseNone = function (reason) {
    ticket++;
    state.bag = -1;
    state.map = null;
    state.values = null;
    state.patch = -1;
    delete document.documentElement.dataset.ready;
    probsa.list.mark();
    for (const id of ["name", "verdict", "readout", "remark", "warning"]) byId(id).textContent = "";
    empty(reason);
  };

  function show(given) {
    const slide = state.map.kind === "slide";
    warn(state.rows[state.bag], state.map);
    byId("message").hidden = true;
    byId("osd").hidden = !slide;
    byId("ct").hidden = slide;
    byId("panel").hidden = false;
    document.body.classList.toggle("chain", !slide);
    byId("window-section").hidden = slide || !state.map.scan;
    if (slide) {
      probsa.overlay.show();
      probsa.viewer.open(given.at);
    } else probsa.viewer.close();
    probsa.panel.show();
    if (!slide) {
      state.slice = given.slice === null || given.slice === undefined ? state.values.galleries[0].rows[0] : given.slice;
      probsa.ct.show();
      probsa.ct.showSlice(state.slice).then(ready);
    }
    probsa.remark();
    probsa.remember();
  }

  function ready() {
    document.documentElement.dataset.ready = String(state.bag);
  }
  probsa.on("slide-open", ready);

  function heading(row) {
    byId("name").textContent = row.name;
    byId("name").title = row.name;
    const holder = byId("verdict");
    holder.textContent = "";
    if (row.failed) return;
    const add = (title, text, hint) => holder.appendChild(make("span", { title: hint || "" }, [make("b", { text: title }), document.createTextNode(" " + text)]));
    const words = state.words;
    const value = words.is_probability ? probsa.colour.probability(row.probability, row.threshold) : probsa.colour.text(row.probability);
    const number = value + (row.spread ? " ± " + probsa.colour.text(row.spread, 2) + " (" + row.span + ")" : "");
    add(words.said, row.call, words.call_hint);
    add(state.positive && state.positive !== row.call ? "p(" + state.positive + ")" : words.measure, number, words.number_hint);
    if (row.threshold !== null) add("threshold", probsa.colour.probability(row.threshold, row.probability));
    if (row.label) add("label", row.label);
    const flags = [row.wrong ? words.wrong : "", row.part === "train" ? "training bag" : ""].filter(Boolean);
    flags.forEach((flag) => holder.appendChild(make("span", { class: "flag " + (flag === words.wrong ? "wrong" : flag.split(" ")[0]), text: flag })));
  }

  /* What a reader must know of this bag before believing its map, in whole sentences. */
  function warn(row, map) {
    const said = [map.contradiction, row.unsure ? "Unsure: " + state.words.unsure_hint : "", row.unlike ? "Unlike training: " + probsa.UNLIKE : ""];
    byId("warning").textContent = said.filter(Boolean).join(" ");
  }

  function empty(reason) {
    byId("osd").hidden = true;
    byId("ct").hidden = true;
    byId("panel").hidden = true;
    say(reason);
    ready();
    probsa.remember();
  }

  function say(text) {
    byId("message").textContent = text;
    byId("message").hidden = false;
  }

  /* What limits the picture: a slide that is missing, overlapping patches, tiles that failed. */
  probsa.remark = function () {
    const map = state.map;
    if (!map) return;
    const parts = [map.reason ? "Without its picture: " + map.reason : "", map.note || "", map.raster ? map.raster.note : ""];
    if (state.failedTiles) parts.push(state.failedTiles + " parts of the slide could not be loaded.");
    byId("remark").textContent = parts.filter(Boolean).join(" ");
  };

  probsa.recolour = function () {
    if (!state.map || !state.values) return;
    if (state.map.kind === "slide") {
      probsa.overlay.colour();
      probsa.viewer.draw();
    } else probsa.ct.update();
    probsa.panel.update();
    probsa.remember();
  };

  probsa.showQuantity = function (key) {
    state.quantity = key;
    probsa.recolour();
    if (state.patch >= 0) byId("readout").textContent = probsa.overlay.describe(state.patch);
  };

  probsa.showClass = function (column) {
    const bag = state.bag, own = ++ticket;
    return probsa.load("values/" + bag + "_" + column).then(function (values) {
      if (own !== ticket) return;
      state.values = values;
      state.column = column;
      state.ranges = {};
      if (!probsa.valuesOf(state.quantity)) state.quantity = "mean";
      probsa.overlay.applyThreshold();
      probsa.panel.show();
      probsa.recolour();
    });
  };

  /* Show the values of a patch: the one below the pointer, or that of the cursor; −1 for none. */
  probsa.point = function (patch) {
    if (patch === state.patch && patch >= 0) return;
    state.patch = patch;
    byId("readout").textContent = patch >= 0 ? probsa.overlay.describe(patch) : "";
    if (state.map && state.map.kind === "slide") probsa.viewer.draw();
  };

  /* Go to a patch or a slice. */
  probsa.goTo = function (instance) {
    if (state.map.kind === "slide") {
      probsa.point(instance);
      probsa.viewer.goToPatch(instance);
    } else probsa.ct.showSlice(instance).then(probsa.remember);
  };

  function follow(place) {
    const wanted = state.rows.findIndex((row) => row.name === place.bag);
    if (wanted >= 0) probsa.list.reveal(wanted);
    probsa.choose(wanted >= 0 ? wanted : probsa.list.first(), wanted >= 0 ? place : {});
  }

  probsa.load("slides").then(function (page) {
    state.rows = page.rows;
    state.classes = page.classes;
    state.words = page.words;
    state.positive = page.positive;
    state.failed = page.remarks.failed || {};
    for (const row of state.rows) if (state.failed[row.name]) row.failed = state.failed[row.name];
    probsa.colour.start(page.colours);
    const model = page.facts.find((fact) => fact[0] === "Model");
    byId("about").textContent = [model ? model[1] : "", page.rows.length + " bags", page.trust.failed.includes("chance") ? "not shown better than chance" : "", page.other ? "against " + page.other : ""].filter(Boolean).join(" · ");
    for (const fact of page.facts) {
      byId("facts-list").appendChild(make("dt", { text: fact[0] }));
      byId("facts-list").appendChild(make("dd", { text: fact[1] }));
    }
    byId("trust").textContent = page.trust.line;
    byId("facts-list").appendChild(make("dt", { text: "Maps" }));
    byId("facts-list").appendChild(make("dd", { text: page.trust.sentence }));
    for (const said of page.reservations) byId("reservations").appendChild(make("li", { text: said }));
    byId("reservations").hidden = !page.reservations.length;
    probsa.viewer.start();
    probsa.panel.start();
    probsa.ct.start();
    probsa.keys.start();
    probsa.list.start();
    window.addEventListener("hashchange", function () {
      if (!probsa.isOwnAddress()) follow(probsa.fromAddress());
    });
    follow(probsa.fromAddress());
  }).catch(function (error) { say("The list of bags could not be loaded: " + error.message); });
})();
