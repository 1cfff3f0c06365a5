"use strict";
/* The list of bags: sorting, searching, filters. */
probsa.list = (function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const make = probsa.make;
  let COLUMNS = [];
  const FILTERS = {
    wrong: (row) => row.wrong === true, unsure: (row) => row.unsure,
    unlike: (row) => row.unlike, failed: (row) => row.failed !== "",
  };
  /* Bags that the model was neither trained nor chosen on; a bag without a prediction has no part. */
  const isTest = (row) => row.part !== "train" && row.part !== "val";
  let sorting = { key: "spread", down: true };
  let shown = [];

  /* The columns, with the words of the task. */
  function columns() {
    const words = state.words;
    return [
      { key: "name", title: "Bag" },
      { key: "label", title: "Label" },
      { key: "call", title: words.call, hint: words.call_hint },
      { key: "probability", title: words.number, hint: words.number_hint, number: true },
      { key: "spread", title: "s.d.", hint: words.spread_hint, number: true },
      { key: "n", title: "n", hint: "Number of patches or slices", number: true },
    ].filter((column) => column.key !== "spread" || state.rows.some((row) => row.spread));
  }

  function start() {
    COLUMNS = columns();
    const unsure = byId("only-unsure").closest("label");
    unsure.hidden = !state.words.unsure_hint;
    unsure.title = state.words.unsure_hint;
    const wrong = byId("only-wrong").closest("label");
    wrong.hidden = !state.words.wrong;
    wrong.lastChild.textContent = " " + state.words.wrong;
    if (state.words.wrong_hint) wrong.title = state.words.wrong_hint;
    for (const column of COLUMNS) {
      const button = make("button", { text: column.title, title: column.hint });
      const cell = make("th", { class: column.number ? "number" : column.key, attributes: { scope: "col", "data-key": column.key } }, [button]);
      button.addEventListener("click", function () {
        const same = sorting.key === column.key;
        sorting = { key: column.key, down: same ? !sorting.down : Boolean(column.number) };
        draw();
      });
      byId("columns").appendChild(cell);
    }
    const unlike = byId("only-unlike").closest("label");
    unlike.hidden = !state.rows.some(FILTERS.unlike);
    unlike.title = probsa.UNLIKE;
    for (const key of Object.keys(FILTERS)) byId("only-" + key).addEventListener("change", narrow);
    const test = byId("only-test");
    test.checked = state.rows.some((row) => isTest(row) && !row.failed) && !state.rows.every(isTest);
    test.closest("label").hidden = !test.checked;
    test.addEventListener("change", narrow);
    byId("search").addEventListener("input", draw);
    byId("search").addEventListener("change", keepOpen);  // when the name is typed
    byId("toggle-list").addEventListener("click", function () {
      const open = byId("list").classList.toggle("open");
      byId("toggle-list").setAttribute("aria-expanded", String(open));
    });
    draw();
  }

  function compare(a, b) {
    const x = state.rows[a][sorting.key], y = state.rows[b][sorting.key];
    const missing = (v) => v === null || v === "" || v === undefined;
    if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;  // missing values last
    const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (sorting.down ? -order : order) || a - b;
  }

  function draw() {
    const text = byId("search").value.trim().toLowerCase();
    const wanted = Object.keys(FILTERS).filter((key) => byId("only-" + key).checked);
    shown = state.rows.map((row, k) => k).filter(function (k) {
      const row = state.rows[k];
      if (byId("only-test").checked && !isTest(row)) return false;
      if (text && !row.name.toLowerCase().includes(text)) return false;
      return !wanted.length || wanted.some((key) => FILTERS[key](row));
    }).sort(compare);
    const table = byId("columns").closest("table");
    while (table.tBodies.length) table.tBodies[0].remove();
    shown.forEach((k) => table.appendChild(entry(k)));
    for (const cell of byId("columns").children) {
      const own = cell.dataset.key === sorting.key;
      cell.setAttribute("aria-sort", own ? (sorting.down ? "descending" : "ascending") : "none");
    }
    byId("count").textContent = shown.length === state.rows.length ? state.rows.length + " bags" : shown.length + " of " + state.rows.length;
    mark();
  }

  /* Two lines: the picture and the name, then the values below their titles. */
  function entry(k) {
    const row = state.rows[k];
    const picture = make("span", { class: "thumb" });
    if (!row.failed) picture.appendChild(make("img", { attributes: { alt: "", loading: "lazy", src: "data/thumb/" + k + ".jpg" } }));
    const button = make("button", { class: "bag", text: row.name, title: row.name });
    const flags = make("span", { class: "flags" });
    if (row.part === "val" && state.rows.some((other) => other.part === "test")) flags.appendChild(make("span", { class: "flag training", text: "validation", title: "The weights, and a threshold if there is one, were chosen on this bag and others of its part." }));
    if (row.part === "train") flags.appendChild(make("span", { class: "flag training", text: "training bag", title: "The model was trained on this bag: its map looks better than those of new bags." }));
    if (row.wrong) flags.appendChild(make("span", { class: "flag wrong", text: state.words.wrong, title: state.words.wrong_hint }));
    if (row.unsure) flags.appendChild(make("span", { class: "flag unsure", text: "unsure", title: state.words.unsure_hint }));
    if (row.unlike) flags.appendChild(make("span", { class: "flag unlike", text: "unlike training", title: probsa.UNLIKE }));
    if (row.failed) flags.appendChild(make("span", { class: "flag failed", text: "failed", title: row.failed }));
    const texts = {
      label: row.label || "–", call: row.call || "–",
      probability: state.words.is_probability ? probsa.colour.probability(row.probability, row.threshold) : probsa.colour.text(row.probability),
      spread: probsa.colour.text(row.spread, 2),
      n: row.n === null ? "–" : row.n.toLocaleString("en-US"),
    };
    const cells = COLUMNS.slice(1).map((column) => make("td", { class: column.number ? "number" : "text", text: texts[column.key], title: column.number ? "" : texts[column.key] }));
    const first = make("tr", {}, [make("td", { class: "picture", attributes: { rowspan: "2" } }, [picture]), make("td", { class: "name", attributes: { colspan: String(COLUMNS.length - 1) } }, [make("span", { class: "name-line" }, [button, flags])])]);
    const body = make("tbody", { attributes: { "data-bag": String(k) } }, [first, make("tr", { class: "values" }, cells)]);
    body.addEventListener("click", () => probsa.choose(k));
    return body;
  }

  /* Mark the bag that is shown. */
  function mark() {
    for (const element of byId("columns").closest("table").tBodies) {
      const own = Number(element.dataset.bag) === state.bag;
      element.classList.toggle("current", own);
      const button = element.querySelector("button");
      if (own) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      if (own) element.scrollIntoView({ block: "nearest" });
    }
  }

  function narrow() {
    draw();
    keepOpen();
  }

  /* The bag that is open is one of the list: else open the first one of it. */
  function keepOpen() {
    if (shown.includes(state.bag)) return;
    if (shown.length) probsa.choose(shown[0]);
    else probsa.chooseNone("No bag is in the list: clear the filters and the search.");
  }

  /* Put a bag that a link names into the list. */
  function reveal(k) {
    if (shown.includes(k) || isTest(state.rows[k])) return;
    byId("only-test").checked = false;
    draw();
  }

  /* The bag to begin with: one with a map, of the test part, called rightly, with a finding, as far
     as there is one; the first such one of the list. */
  function first() {
    const faults = (row) => 8 * (row.failed !== "") + 4 * (row.part !== "test") + 2 * (row.wrong === true) + (row.call !== state.positive);
    return shown.reduce((best, k) => faults(state.rows[k]) < faults(state.rows[best]) ? k : best, shown[0]);
  }

  /* The next or previous bag of the list as it is sorted. */
  function move(by) {
    const at = shown.indexOf(state.bag);
    const next = shown[Math.max(0, Math.min(shown.length - 1, at + by))];
    if (next !== undefined && next !== state.bag) probsa.choose(next);
  }

  return { start: start, mark: mark, move: move, first: first, reveal: reveal };
})();
