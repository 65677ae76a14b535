// Figures with controls: looks numbers up in tables that icl_core computed and draws them. No formula stands here.
(function () {
  "use strict";
  var SVG = "http://www.w3.org/2000/svg";
  var COLORS = ["#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#E69F00"];
  var DASHES = ["", "6 4", "2 3", "8 3 2 3", "1 3", "10 4"];
  var PALETTES = {
    diverging: [[0, 90, 150], [247, 247, 247], [190, 80, 0]],
    sequential: [[255, 255, 255], [86, 160, 210], [0, 48, 96]],
  };
  var serial = 0;

  function make(tag, attributes, parent, text) {
    var svg = /^(svg|g|rect|line|path|text|circle|title)$/.test(tag);
    var node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (key) { node.setAttribute(key, attributes[key]); });
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function mix(palette, share) {
    var stops = PALETTES[palette], place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    var i = Math.min(Math.floor(place), stops.length - 2), f = place - i;
    return stops[i].map(function (low, c) { return Math.round(low + (stops[i + 1][c] - low) * f); });
  }

  function dark(rgb) { return 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] < 140; }

  function written(number) {
    var size = Math.abs(number);
    if (number === 0) return "0";
    var text = size >= 1e4 || size < 1e-3 ? number.toExponential(1) : String(Number(number.toPrecision(3)));
    return text.replace("-", "\u2212");
  }

  function cell(number) {
    var size = Math.abs(number);
    var text = size >= 10 ? number.toFixed(0) : size >= 1 ? number.toFixed(1) : number.toFixed(2);
    return text.replace(/^-(0\.00)$/, "$1").replace("-", "\u2212");
  }

  function Figure(root) {
    this.root = root;
    this.spec = JSON.parse(root.querySelector("script").textContent);
    this.id = "explorable-" + ++serial;
    this.at = {};
    var self = this;
    this.spec.controls.forEach(function (c) { self.at[c.name] = c.start; });
    this.build();
    this.draw();
  }

  Figure.prototype.control = function (name) {
    return this.spec.controls.filter(function (c) { return c.name === name; })[0];
  };

  Figure.prototype.shown = function (control) {
    var i = this.at[control.name];
    return control.shown.length ? control.shown[i] : String(control.values[i]);
  };

  Figure.prototype.look = function (name) {
    var table = this.spec.tables[name], at = this.at;
    return table.depends.reduce(function (values, control) { return values[at[control]]; }, table.values);
  };

  Figure.prototype.build = function () {
    var self = this, spec = this.spec;
    this.root.textContent = "";
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", spec.title);
    make("p", { class: "explorable-title" }, this.root, spec.title);
    var form = make("div", { class: "explorable-controls" }, this.root);
    this.outputs = {};
    spec.controls.forEach(function (c) {
      var box = make("div", { class: "explorable-control" }, form), id = self.id + "-" + c.name, input;
      make("label", { for: id }, box, c.label);
      if (c.kind === "slider") {
        self.outputs[c.name] = make("output", { for: id }, box);
        input = make("input", {
          id: id, type: "range", min: 0, max: c.values.length - 1, step: 1, "data-control": c.name,
        }, box);
      } else {
        input = make("select", { id: id, "data-control": c.name }, box);
        c.values.forEach(function (value, i) {
          make("option", { value: i }, input, c.shown.length ? c.shown[i] : String(value));
        });
      }
      input.value = c.start;
      input.addEventListener("input", function () {
        self.at[c.name] = Number(input.value);
        self.draw();
      });
      c.input = input;
    });
    this.sentence = make("p", { class: "explorable-sentence", "aria-live": "polite" }, this.root);
    this.panels = make("div", { class: "explorable-panels" }, this.root);
    var blob = new Blob([JSON.stringify(spec, null, 1)], { type: "application/json" });
    var foot = make("p", { class: "figure-footer" }, this.root);
    var made = spec.provenance || {};
    foot.appendChild(document.createTextNode(made.seconds ? "Tables computed in " + written(made.seconds) + " s on " +
      made.device + ", " + made.date + "." : ""));
    if (made.command) {
      foot.appendChild(document.createTextNode(" Again: "));
      make("code", {}, foot, made.command);
      foot.appendChild(document.createTextNode("."));
    }
    foot.appendChild(document.createTextNode(" Data: "));
    make("a", { download: spec.name + ".json", href: URL.createObjectURL(blob) }, foot, spec.name + ".json");
    foot.appendChild(document.createTextNode("."));
  };

  Figure.prototype.draw = function () {
    var self = this, spec = this.spec;
    var state = spec.controls.map(function (c) { return c.name + "=" + c.values[self.at[c.name]]; }).join(";");
    spec.controls.forEach(function (c) {
      c.input.setAttribute("aria-valuetext", self.shown(c));
      if (self.outputs[c.name]) self.outputs[c.name].textContent = self.shown(c);
    });
    this.sentence.textContent = spec.sentence.replace(/\{(\w+)\}/g, function (_, name) {
      var c = self.control(name);
      return c ? self.shown(c) : written(self.look(name));
    });
    this.panels.textContent = "";
    spec.panels.forEach(function (p) {
      var box = make("figure", { class: "explorable-panel explorable-" + p.kind }, self.panels);
      make("figcaption", {}, box, p.title);
      if (p.kind === "heatmap") self.heatmap(p, box); else self.lines(p, box);
    });
    this.root.setAttribute("data-state", state);
  };

  Figure.prototype.heatmap = function (panel, box) {
    var matrix = this.look(panel.table), rows = matrix.length, columns = matrix[0].length;
    var left = 44, top = 34, side = 256 / Math.max(rows, columns), text = Math.min(15, side * 0.36);
    var svg = make("svg", {
      viewBox: "0 0 310 " + (top + side * rows + 40), role: "img",
      "aria-label": panel.title + ": " + rows + " rows (" + panel.rows + ") by " + columns + " columns (" + panel.columns + ")",
    }, box);
    make("text", { x: left + side * columns / 2, y: 10, class: "explorable-axis", "text-anchor": "middle" }, svg, panel.columns);
    make("text", {
      x: 10, y: top + side * rows / 2, class: "explorable-axis", "text-anchor": "middle",
      transform: "rotate(-90 10 " + (top + side * rows / 2) + ")",
    }, svg, panel.rows);
    matrix.forEach(function (row, n) {
      make("text", { x: left - 6, y: top + side * (n + 0.5) + 4, class: "explorable-tick", "text-anchor": "end" }, svg, n + 1);
      row.forEach(function (value, k) {
        if (n === 0) {
          make("text", { x: left + side * (k + 0.5), y: top - 4, class: "explorable-tick", "text-anchor": "middle" }, svg, k + 1);
        }
        var rgb = mix(panel.palette, (value - panel.low) / (panel.high - panel.low));
        var square = make("rect", {
          x: left + side * k, y: top + side * n, width: side - 1, height: side - 1, fill: "rgb(" + rgb + ")", stroke: "#999",
          "stroke-width": 0.5,
        }, svg);
        make("title", {}, square, panel.rows + " " + (n + 1) + ", " + panel.columns + " " + (k + 1) + ": " + written(value));
        make("text", {
          x: left + side * (k + 0.5) - 0.5, y: top + side * (n + 0.5) + text * 0.35, "text-anchor": "middle",
          "font-size": text, fill: dark(rgb) ? "#fff" : "#000", "pointer-events": "none",
        }, svg, cell(value));
      });
    });
    var bar = top + side * rows + 14;
    for (var i = 0; i < 32; i++) {
      make("rect", {
        x: left + 8 * i, y: bar, width: 8.3, height: 8, fill: "rgb(" + mix(panel.palette, i / 31) + ")",
      }, svg);
    }
    make("rect", { x: left, y: bar, width: 256, height: 8, fill: "none", stroke: "#999", "stroke-width": 0.5 }, svg);
    [[panel.low, left, "start"], [panel.high, left + 256, "end"]].forEach(function (end) {
      make("text", { x: end[1], y: bar + 21, class: "explorable-tick", "text-anchor": end[2] }, svg, written(end[0]));
    });
  };

  Figure.prototype.lines = function (panel, box) {
    var self = this, axis = this.control(panel.x), xs = axis ? axis.values : this.look(panel.x);
    var W = 400, H = 270, left = 56, right = 12, top = 12, bottom = 46;
    var lines = panel.series.map(function (s) { return self.look(s.table); });
    function scale(values, log, low, high, pad) {
      var good = values.filter(function (v) { return !log || v > 0; }).map(function (v) { return log ? Math.log10(v) : v; });
      var a = Math.min.apply(null, good), b = Math.max.apply(null, good);
      if (pad && !log) a = Math.min(a, 0);
      if (a === b) { a -= 1; b += 1; }
      if (pad) b += 0.05 * (b - a);
      var map = function (v) { return low + ((log ? Math.log10(v) : v) - a) / (b - a) * (high - low); };
      map.ticks = ticks(a, b, log);
      return map;
    }
    function ticks(a, b, log) {
      if (log) {
        var every = Math.max(1, Math.ceil((b - a) / 6)), list = [];
        for (var e = Math.ceil(a); e <= b; e += every) list.push(Math.pow(10, e));
        return list;
      }
      var rough = (b - a) / 5, unit = Math.pow(10, Math.floor(Math.log10(rough)));
      var step = [1, 2, 5, 10].map(function (m) { return m * unit; }).filter(function (s) { return s >= rough; })[0], out = [];
      for (var i = Math.ceil(a / step - 1e-9); i * step <= b + 1e-9 * step; i++) out.push(Number((i * step).toPrecision(6)));
      return out;
    }
    var x = scale(xs, panel.log_x, left, W - right, false);
    var y = scale([].concat.apply([], lines), panel.log_y, H - bottom, top, true);
    var svg = make("svg", {
      viewBox: "0 0 " + W + " " + H, role: "img",
      "aria-label": panel.title + ": " + panel.y_label + " over " + panel.x_label + " for " +
        panel.series.map(function (s) { return s.label; }).join(", "),
    }, box);
    (panel.bands ? this.look(panel.bands) : []).forEach(function (band, i) {
      var from = Math.max(left, x(band[0])), to = Math.min(W - right, x(band[1]));
      if (!(to > from)) return;
      make("rect", {
        x: from, y: top, width: to - from, height: H - bottom - top, fill: i % 2 ? "#f6f6f6" : "#e4e8ee",
      }, svg);
      if (to - from > 14 && panel.band_labels[i]) {
        make("text", {
          x: (from + to) / 2, y: top - 2, class: "explorable-tick", "text-anchor": "middle",
        }, svg, panel.band_labels[i]);
      }
    });
    y.ticks.forEach(function (t) {
      make("line", { x1: left, x2: W - right, y1: y(t), y2: y(t), stroke: "#ddd" }, svg);
      make("text", { x: left - 6, y: y(t) + 4, class: "explorable-tick", "text-anchor": "end" }, svg, written(t));
    });
    (panel.x_ticks.length ? panel.x_ticks : x.ticks).forEach(function (t) {
      make("line", { x1: x(t), x2: x(t), y1: H - bottom, y2: H - bottom + 4, stroke: "#555" }, svg);
      make("text", { x: x(t), y: H - bottom + 18, class: "explorable-tick", "text-anchor": "middle" }, svg, written(t));
    });
    make("line", { x1: left, x2: W - right, y1: H - bottom, y2: H - bottom, stroke: "#555" }, svg);
    make("text", { x: (left + W - right) / 2, y: H - 8, class: "explorable-axis", "text-anchor": "middle" }, svg, panel.x_label);
    make("text", {
      x: 12, y: (top + H - bottom) / 2, class: "explorable-axis", "text-anchor": "middle",
      transform: "rotate(-90 12 " + (top + H - bottom) / 2 + ")",
    }, svg, panel.y_label);
    var mark = panel.marker === null ? -1 : this.at[panel.marker];
    if (mark >= 0) {
      make("line", { x1: x(xs[mark]), x2: x(xs[mark]), y1: top, y2: H - bottom, stroke: "#555", "stroke-width": 1 }, svg);
    }
    lines.forEach(function (line, i) {
      var pen = "M", path = "";
      line.forEach(function (v, j) {
        if ((panel.log_y && v <= 0) || (panel.log_x && xs[j] <= 0)) { pen = "M"; return; }
        path += pen + x(xs[j]).toFixed(1) + " " + y(v).toFixed(1);
        pen = "L";
      });
      make("path", {
        d: path, fill: "none", stroke: COLORS[i % COLORS.length], "stroke-width": 2, "stroke-dasharray": DASHES[i % DASHES.length],
      }, svg);
      if (mark >= 0 && i === 0) {
        make("circle", { cx: x(xs[mark]), cy: y(line[mark]), r: 5, fill: COLORS[0], stroke: "#fff" }, svg);
      }
    });
    var legend = make("ul", { class: "explorable-legend" }, box);
    panel.series.forEach(function (s, i) {
      var item = make("li", {}, legend), key = make("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" }, item);
      make("line", {
        x1: 0, x2: 28, y1: 4, y2: 4, stroke: COLORS[i % COLORS.length], "stroke-width": 2.5,
        "stroke-dasharray": DASHES[i % DASHES.length],
      }, key);
      item.appendChild(document.createTextNode(" " + s.label));
    });
  };

  function start() {
    document.querySelectorAll("[data-explorable]:not([data-state])").forEach(function (root) { new Figure(root); });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
