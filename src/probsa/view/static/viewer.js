"use strict";
/* The slide: OpenSeadragon on a 2-D canvas, since WebGL cannot show tiles of a page from a folder. */
probsa.viewer = (function () {
  const state = probsa.state;
  const byId = probsa.byId;
  const PLAIN = "data:image/gif;base64,R0lGODdhAQABAIAAAEhLUAAAACwAAAAAAQABAAACAkQBADs=";
  let osd = null;
  let canvas = null;
  let under = null;
  let ratio = 1;
  let pending = null;

  function start() {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    // OpenSeadragon looks for this element before it adds an inline style, which the policy forbids;
    // an element of another namespace is no style sheet
    const none = document.createElementNS("urn:probsa", "style");
    none.setAttribute("data-openseadragon-mobile-css", "true");
    document.head.appendChild(none);
    osd = OpenSeadragon({
      element: byId("osd"),
      drawer: "canvas",
      prefixUrl: "",
      showNavigationControl: false,
      showNavigator: true,
      navigatorPosition: "TOP_RIGHT",
      navigatorAutoFade: false,
      navigatorSizeRatio: 0.16,
      navigatorBackground: "#26292d",
      navigatorBorderColor: "#5a5f66",
      navigatorDisplayRegionColor: "#e8b14a",
      animationTime: still ? 0 : 0.25,
      immediateRender: false,
      blendTime: 0,
      minZoomImageRatio: 0.7,
      maxZoomPixelRatio: 8,
      visibilityRatio: 0.3,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
      gestureSettingsTouch: { clickToZoom: false },
      timeout: 120000,
    });
    // the lower canvas takes the stain from the tissue below the map, the upper one holds the map
    [under, canvas] = ["grey-canvas", "map-canvas"].map(function (id) {
      const element = document.createElement("canvas");
      element.id = id;
      osd.canvas.appendChild(element);
      return element;
    });
    osd.addHandler("update-viewport", draw);
    osd.addHandler("resize", draw);
    osd.addHandler("canvas-key", (event) => { event.preventDefaultAction = true; });
    osd.addHandler("animation-finish", probsa.remember);
    osd.addHandler("open", function () {
      // the title may have changed the height since the last measurement
      osd.viewport.resize(new OpenSeadragon.Point(osd.container.clientWidth, osd.container.clientHeight), false);
      if (pending) go(pending[0], pending[1], pending[2], true);
      else osd.viewport.goHome(true);
      pending = null;
      draw();
      probsa.tell("slide-open");
    });
    osd.addHandler("tile-load-failed", function () {
      state.failedTiles++;
      probsa.remark();
    });
    osd.canvas.addEventListener("pointermove", function (event) { hover(event.clientX, event.clientY); });
    osd.canvas.addEventListener("pointerleave", () => probsa.point(-1));
  }

  function item() { return osd.world.getItemAt(0); }

  function scale() { return state.map.slide ? state.map.slide.scale : 1; }

  /* Where the picture begins and ends: without a slide, it is the map with a cell around it. */
  function bounds() {
    const map = state.map, r = map.raster;
    if (map.slide) return [0, 0, map.size[0], map.size[1]];
    return [r.x0 - r.cell, r.y0 - r.cell, (r.width + 2) * r.cell, (r.height + 2) * r.cell];
  }

  /* Open the slide of the current bag, or a plain background of the same size. */
  function open(place) {
    const map = state.map;
    pending = place || null;
    const slide = map.slide;
    const bag = state.bag;
    osd.navigator.element.style.display = slide ? "" : "none";
    if (slide) {
      osd.open({
        width: slide.width, height: slide.height, tileSize: slide.tile, tileOverlap: slide.overlap,
        minLevel: Math.min(slide.maxLevel, 6), maxLevel: slide.maxLevel,
        tileExists: function (level, x, y) {
          const n = this.getNumTiles(level);
          return level <= slide.maxLevel && x >= 0 && y >= 0 && x < n.x && y < n.y && (level <= slide.whole || ofPatches(level).has(x + "_" + y));
        },
        getTileUrl: (level, x, y) => "data/tiles/" + bag + "/" + level + "/" + x + "_" + y + ".jpg",
      });
    } else {
      const [, , width, height] = bounds();
      osd.open({
        width: width, height: height, tileWidth: width, tileHeight: height,
        minLevel: 0, maxLevel: 0, getTileUrl: () => PLAIN,
      });
    }
  }

  /* The tiles of a level on which patches lie; levels finer than whole have no others. */
  function ofPatches(level) {
    const map = state.map, side = map.slide.tile * map.slide.scale * Math.pow(2, map.slide.maxLevel - level);
    map.onTiles = map.onTiles || {};
    if (map.onTiles[level]) return map.onTiles[level];
    const found = map.onTiles[level] = new Set();
    for (let i = 0; i < map.corners.length; i += 2) {
      const [x0, y0, x1, y1] = [0, 0, map.side, map.side].map((more, k) => Math.floor((map.corners[i + k % 2] + more) / side));
      for (let x = x0; x <= x1; x++) for (let y = y0; y <= y1; y++) found.add(x + "_" + y);
    }
    return found;
  }

  function close() { osd.close(); }

  /* Level-0 pixels to pixels of the overlay's canvas. */
  function toCanvas(x, y) {
    const s = scale(), [left, top] = bounds();
    const point = item().imageToViewerElementCoordinates(new OpenSeadragon.Point((x - left) / s, (y - top) / s));
    return { x: point.x * ratio, y: point.y * ratio };
  }

  /* A position in the window to level-0 pixels. */
  function toSlide(clientX, clientY) {
    const box = osd.canvas.getBoundingClientRect();
    const point = item().viewerElementToImageCoordinates(new OpenSeadragon.Point(clientX - box.left, clientY - box.top));
    const [left, top] = bounds();
    return { x: left + point.x * scale(), y: top + point.y * scale() };
  }

  function draw() {
    if (!canvas) return;
    ratio = window.devicePixelRatio || 1;
    const width = Math.round(osd.canvas.clientWidth * ratio), height = Math.round(osd.canvas.clientHeight * ratio);
    const contexts = [under, canvas].map(function (element) {
      if (element.width !== width || element.height !== height) {
        element.width = width;
        element.height = height;
      }
      const context = element.getContext("2d");
      context.clearRect(0, 0, width, height);
      return context;
    });
    if (!item() || !state.map || state.map.kind !== "slide" || !state.values) return;
    if (state.grey && state.map.slide) probsa.overlay.drawGrey(contexts[0], toCanvas);
    probsa.overlay.draw(contexts[1], toCanvas);
    scaleBar(contexts[1], height);
  }

  /* A bar of a round length in the lower left corner. */
  function scaleBar(context, height) {
    const one = toCanvas(1000, 0).x - toCanvas(0, 0).x;  // canvas pixels of 1000 level-0 pixels
    const mpp = state.map.mpp;
    const perPixel = 1000 * (mpp || 1) / one;  // µm, or level-0 pixels, per canvas pixel
    const wanted = 120 * ratio * perPixel;
    const power = Math.pow(10, Math.floor(Math.log10(wanted)));
    const length = [5, 2, 1].map((v) => v * power).find((v) => v <= wanted);
    const said = state.map.mpp_given ? " (as given)" : "";
    const text = !mpp ? length.toLocaleString("en-US") + " px" : (length >= 1000 ? length / 1000 + " mm" : length + " µm") + said;
    const width = length / perPixel, x = 16 * ratio, y = height - 16 * ratio;
    context.save();
    context.font = 600 + " " + 12 * ratio + "px system-ui, sans-serif";
    const box = Math.max(width, context.measureText(text).width) + 16 * ratio;
    context.fillStyle = "rgba(20, 22, 25, 0.78)";
    context.fillRect(x - 8 * ratio, y - 26 * ratio, box, 34 * ratio);
    context.fillStyle = "#f2f3f5";
    context.fillRect(x, y - 3 * ratio, width, 3 * ratio);
    context.fillText(text, x, y - 9 * ratio);
    context.restore();
  }

  function hover(clientX, clientY) {
    if (!item() || !state.map || !state.map.raster || !state.values) return;
    const at = toSlide(clientX, clientY);
    probsa.point(probsa.overlay.patchAt(at.x, at.y));
  }

  /* Centre in level-0 pixels, and level-0 pixels per pixel of the window. */
  function place() {
    if (!osd || !item() || !state.map || state.map.kind !== "slide") return null;
    const s = scale(), [left, top] = bounds();
    const centre = item().viewportToImageCoordinates(osd.viewport.getCenter(true));
    const zoom = item().viewportToImageZoom(osd.viewport.getZoom(true));
    return [left + centre.x * s, top + centre.y * s, s / zoom];
  }

  function go(x, y, perPixel, immediately) {
    if (!item()) return;
    const s = scale(), [left, top] = bounds();
    const centre = item().imageToViewportCoordinates(new OpenSeadragon.Point((x - left) / s, (y - top) / s));
    osd.viewport.zoomTo(item().imageToViewportZoom(s / perPixel), null, immediately);
    osd.viewport.panTo(centre, immediately);
    if (immediately) osd.viewport.applyConstraints(true);
    osd.forceRedraw();
  }

  /* Show a patch in the middle, about a fifth of the window wide. */
  function goToPatch(patch) {
    const at = probsa.overlay.corner(patch), side = state.map.side;
    const width = osd.canvas.clientWidth;
    go(at[0] + side / 2, at[1] + side / 2, Math.max(side * 5 / width, 0.25), false);
  }

  /* Pan by a share of the window. */
  function pan(x, y) {
    const box = osd.viewport.getBounds();
    osd.viewport.panBy(new OpenSeadragon.Point(x * box.width, y * box.height));
    osd.viewport.applyConstraints();
  }

  function zoom(factor) {
    osd.viewport.zoomBy(factor);
    osd.viewport.applyConstraints();
  }

  return {
    start: start, open: open, close: close, draw: draw, place: place, go: go, goToPatch: goToPatch,
    pan: pan, zoom: zoom, home: () => osd.viewport.goHome(), toCanvas: toCanvas,
    isReady: () => Boolean(item()) && item().getFullyLoaded(),
    ratio: () => ratio,
  };
})();
