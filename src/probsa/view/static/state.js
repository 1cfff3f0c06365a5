"use strict";
/* The state of the page, its data, and the address that holds a place. */
var probsa = (function () {
  const KEPT = 3;  // bags whose data stay in memory
  const waiting = new Map();
  const kept = new Map();
  const listeners = {};

  const state = {
    rows: [],          // the list of bags
    bag: -1,           // number of the bag that is shown
    map: null,         // its geometry
    values: null,      // the quantities of one class
    column: 0,
    quantity: "mean",
    ranges: {},        // by quantity: [low, high], chosen by the user for this bag
    scale: "all",
    opacity: 0.6,
    threshold: null,   // null: nothing is hidden
    overlay: true,
    tissue: false,
    outline: false,
    fade: false,
    grey: true,        // the tissue below the map is grey, as in the maps of probsa map
    slice: 0,
    patch: -1,         // the patch below the pointer or the cursor
    failedTiles: 0,
  };

  function on(name, call) {
    (listeners[name] = listeners[name] || []).push(call);
  }

  function tell(name, detail) {
    (listeners[name] || []).forEach((call) => call(detail));
  }

  const TYPES = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };

  /* Turn packed arrays, at any depth, into typed arrays. */
  function unpack(value) {
    if (Array.isArray(value)) return value.length && typeof value[0] === "object" ? value.map(unpack) : value;
    if (value === null || typeof value !== "object") return value;
    if (typeof value.base64 === "string") {
      const text = atob(value.base64);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      return new TYPES[value.type](bytes.buffer);
    }
    const out = {};
    for (const key of Object.keys(value)) out[key] = unpack(value[key]);
    return out;
  }

  /* Data scripts call this. */
  function put(key, value) {
    const wanted = waiting.get(key);
    if (wanted) wanted.resolve(unpack(value));
  }

  /* Load data/<key>.js: a classic script, since pages opened from a folder may load nothing else. */
  function load(key) {
    if (kept.has(key)) return kept.get(key);
    const promise = new Promise(function (resolve, reject) {
      waiting.set(key, { resolve: resolve });
      const script = document.createElement("script");
      script.src = "data/" + key + ".js";
      script.onload = script.onerror = function (event) {
        script.remove();
        waiting.delete(key);
        if (event.type === "error") {
          kept.delete(key);
          reject(new Error("The data of this bag could not be loaded."));
        }
      };
      document.head.appendChild(script);
    });
    kept.set(key, promise);
    return promise;
  }

  /* Drop the data of all but the last bags, and slices beyond a number. */
  const recent = [];
  function forget(bag) {
    const at = recent.indexOf(bag);
    if (at >= 0) recent.splice(at, 1);
    recent.push(bag);
    const gone = recent.splice(0, Math.max(0, recent.length - KEPT)).map(String);
    for (const key of Array.from(kept.keys())) {
      const parts = key.split("/");
      if (parts.length === 2 && gone.includes(parts[1].split("_")[0])) kept.delete(key);
    }
  }

  function quantity(key) {
    if (!state.values) return null;
    return state.values.quantities.find((q) => q.key === (key || state.quantity)) || null;
  }

  function valuesOf(key) {
    const found = quantity(key);
    return found && found.values ? found.values : null;
  }

  /* The address: bag, quantity, place. */
  let timer = 0;
  let written = "";
  function address(place) {
    const row = state.rows[state.bag];
    if (!row) return "";
    const parts = ["bag=" + encodeURIComponent(row.name), "q=" + state.quantity];
    if (state.map && state.map.classes.length) parts.push("class=" + state.column);
    const range = state.ranges[state.quantity];
    if (range) parts.push("range=" + range.map((v) => Number(v.toPrecision(6))).join(","));
    if (place) parts.push("at=" + place.map((v) => Number(v.toPrecision(8))).join(","));
    if (state.map && state.map.kind === "chain") parts.push("slice=" + state.slice);
    return "#" + parts.join("&");
  }

  function remember() {
    clearTimeout(timer);
    timer = setTimeout(function () {
      written = address(probsa.viewer.place());
      if (written && written !== location.hash) history.replaceState(null, "", written);
    }, 150);
  }

  function fromAddress() {
    const found = {};
    for (const part of location.hash.slice(1).split("&")) {
      const at = part.indexOf("=");
      if (at < 0) continue;
      try {
        found[part.slice(0, at)] = decodeURIComponent(part.slice(at + 1));
      } catch (error) { /* an address cut off inside a character */ }
    }
    const numbers = (text) => (text || "").split(",").map(Number).filter(Number.isFinite);
    return {
      bag: found.bag,
      quantity: found.q,
      column: found.class === undefined ? null : Number(found.class),
      range: numbers(found.range).length === 2 ? numbers(found.range) : null,
      at: numbers(found.at).length === 3 ? numbers(found.at) : null,
      slice: found.slice === undefined ? null : Number(found.slice),
    };
  }

  function byId(id) { return document.getElementById(id); }

  /* Make an element; text is always text. */
  function make(tag, options, children) {
    const element = document.createElement(tag);
    const given = options || {};
    if (given.text !== undefined) element.textContent = given.text;
    if (given.class) element.className = given.class;
    if (given.title) element.title = given.title;
    for (const name of Object.keys(given.attributes || {})) element.setAttribute(name, given.attributes[name]);
    (children || []).forEach((child) => element.appendChild(child));
    return element;
  }

  return {
    state: state, on: on, tell: tell, put: put, load: load, forget: forget, quantity: quantity,
    valuesOf: valuesOf, remember: remember, fromAddress: fromAddress, byId: byId, make: make,
    isOwnAddress: () => location.hash === written,
  };
})();
