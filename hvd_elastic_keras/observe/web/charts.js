"use strict";
// Code that the dashboard and the report share: the course of a job, and how it is drawn.

const MOST_POINTS = 4000;
const MOST_CHANGES = 1000;
const CHARTS_OF_METRICS = 6;
const MOST_DOTS = 80;
const GOOD = ["training", "evaluating"];
const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- numbers for people ----------------------------------------------------------------

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 10000) return Math.round(value).toLocaleString("en");
  if (Math.abs(value) < 0.001) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)} h` : `${minutes}:${two(rest)} min`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// --- the course of a job ---------------------------------------------------------------

class Course {
  constructor() {
    this.curves = { steps: [], epochs: [], sizes: [] };
    this.changes = [];
  }

  add(news) {
    for (const [name, points] of Object.entries(this.curves)) {
      points.push(...(news[name] || []));
      if (points.length > MOST_POINTS) this.curves[name] = points.filter((_, i) => i % 2 === 0);
    }
    this.changes = this.changes.concat(news.changes || []).slice(-MOST_CHANGES);
  }

  /** Names of metrics, the loss first, without the metrics of the validation. */
  metrics() {
    const names = new Set();
    for (const point of [...this.curves.steps, ...this.curves.epochs])
      for (const name of Object.keys(point.values)) names.add(name.replace(/^val_/, ""));
    const sorted = [...names].sort((a, b) => (b === "loss") - (a === "loss") || (a < b ? -1 : 1));
    return sorted.slice(0, CHARTS_OF_METRICS);
  }

  /** Columns of one metric, of training and validation, by "time" or "step". */
  metric(name, by) {
    const points = [...this.curves.steps, ...this.curves.epochs].sort((a, b) => a.n - b.n);
    const rows = [];
    for (const point of points) {
      const [train, validation] = [point.values[name], point.values[`val_${name}`]];
      if (train === undefined && validation === undefined) continue;
      // Steps that were taken again, or steps of the next training, replace the steps they repeat.
      while (rows.length && rows.at(-1)[0] > point[by]) rows.pop();
      const same = rows.length && rows.at(-1)[0] === point[by] ? rows.pop() : [];
      rows.push([point[by], train ?? same[1] ?? null, validation ?? same[2] ?? null]);
    }
    return columns(rows, 3);
  }

  /** The unit that is counted: "step", or "commit" in a user's own loop, where the examples are not known. */
  unit() {
    const points = this.curves.steps;
    return points.length && points.every((point) => point.unit === "commit") ? "commit" : "step";
  }

  speedName() {
    return this.unit() === "commit" ? "commits/s" : "examples/s";
  }

  speeds() {
    if (this.unit() === "commit") return this.curves.steps.map((p) => [p.time, p.step_s ? 1 / p.step_s : null]);
    return this.curves.steps.map((p) => [p.time, p.examples_per_s]);
  }

  speed() {
    return columns(this.speeds(), 2);
  }

  sizes(until) {
    const rows = this.curves.sizes.map((p) => [p.time, p.size]);
    if (rows.length && until > rows.at(-1)[0]) rows.push([until, rows.at(-1)[1]]);
    return columns(rows, 2);
  }

  rounds() {
    return this.changes.filter((change) => change.round);
  }
}

function columns(rows, count) {
  return Array.from({ length: count }, (_, column) => rows.map((row) => row[column]));
}

// --- pictures --------------------------------------------------------------------------

/** A chart in a card; `series` are labels, `marks` gives the places of vertical lines. */
class Chart {
  constructor(card, { series, byTime = true, stepped = false, fromZero = false, marks = () => [] }) {
    Object.assign(this, { card, series, byTime, stepped, fromZero, marks });
    this.data = [[], ...series.map(() => [])];
    new ResizeObserver(() => this.fit()).observe(card);
    dark.addEventListener("change", () => this.draw());
    card.addEventListener("dblclick", () => this.unzoom());
  }

  set(data) {
    this.data = data;
    if (!this.plot) return this.draw();
    this.plot.setData(data, !this.zoomed);
    if (this.zoomed) this.plot.redraw();
  }

  unzoom() {
    this.zoomed = false;
    this.plot.setData(this.data);
  }

  fit() {
    if (this.plot) this.plot.setSize(this.size());
  }

  size() {
    const style = getComputedStyle(this.card);
    const inner = this.card.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return { width: Math.max(160, Math.floor(inner)), height: 180 };
  }

  draw() {
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(), this.data, this.card);
  }

  options() {
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    axis.font = "11.5px system-ui, sans-serif";
    const lines = this.series.map((label, i) => ({
      label,
      stroke: colour(`c${i}`),
      width: 1.75,
      spanGaps: true,
      points: { size: 5, ...(i > 0 && { show: (plot) => plot.data[0].length <= MOST_DOTS }) },
      ...(this.stepped && { paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }),
      value: (_, value) => number(value),
    }));
    const places = (_, values) => values.map((value) => number(value, 3));
    return {
      ...this.size(),
      padding: [8, 26, 0, 0],
      scales: {
        x: { time: this.byTime },
        y: { range: (_, low, high) => this.range(low, high) },
      },
      axes: [
        { ...axis, size: 30, space: 90, ...(this.byTime && { values: TIMES }) },
        { ...axis, size: 54, values: places, ...(this.stepped && { incrs: WHOLE }) },
      ],
      series: [{ label: this.byTime ? "time" : "step", value: (_, x) => this.shown(x) }, ...lines],
      cursor: { points: { size: 6 }, ...(this.byTime && { sync: { key: "time" } }) },
      hooks: {
        drawClear: [(plot) => this.mark(plot)],
        setCursor: [(plot) => plot.root.classList.toggle("pointed", Number.isInteger(plot.cursor.idx))],
        setSelect: [(plot) => (this.zoomed ||= plot.select.width > 0)],
      },
    };
  }

  range(low, high) {
    if (low === null) return [0, 1];
    const bottom = this.fromZero ? Math.min(0, low) : low;
    const room = (high - bottom || Math.abs(high) || 1) * 0.08;
    return [this.fromZero ? bottom : bottom - room, high + room];
  }

  shown(x) {
    if (x === null || x === undefined) return "–";
    return this.byTime ? clock(x) : number(x);
  }

  mark(plot) {
    const { left, top, width, height } = plot.bbox;
    plot.ctx.save();
    plot.ctx.strokeStyle = colour("quiet");
    plot.ctx.globalAlpha = 0.35;
    plot.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    plot.ctx.beginPath();
    for (const place of this.marks()) {
      const x = plot.valToPos(place, "x", true);
      if (x < left || x > left + width) continue;
      plot.ctx.moveTo(x, top);
      plot.ctx.lineTo(x, top + height);
    }
    plot.ctx.stroke();
    plot.ctx.restore();
  }
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const TIMES = [
  [86400, "{DD}.{MM}.", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", null, null, null, null, null, null, 1],
];

function card(title, ...content) {
  return element("section", { className: "card" }, element("h2", { textContent: title }), ...content);
}

function tiles(values) {
  return values.map(([name, value]) =>
    element("div", { className: "tile" }, element("b", { textContent: value }), element("span", { textContent: name })),
  );
}

/** The bar that shows what the time was spent on, the largest parts first. */
function goodput(spent) {
  const parts = Object.entries(spent);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const bar = element("div", { className: "bar" });
  const legend = element("div", { className: "legend" });
  const order = ["training", "starting", "evaluating", "re-forming", "syncing", "waiting", "detecting", "finishing", "script"];
  for (const [name, seconds] of parts) {
    const paint = colour(order.includes(name) ? `c${order.indexOf(name)}` : "quiet");
    const piece = element("i", { title: `${name} ${duration(seconds)}` });
    piece.style.flexGrow = seconds;
    const sign = element("i");
    for (const painted of [piece, sign]) painted.style.background = paint;
    bar.append(piece);
    const share = element("span", { className: "quiet", textContent: ` ${percent(seconds / total)}` });
    legend.append(element("span", {}, sign, `${name} ${duration(seconds)}`, share));
  }
  return [bar, legend];
}

function goodShare(spent) {
  const total = Object.values(spent).reduce((sum, seconds) => sum + seconds, 0);
  const good = GOOD.reduce((sum, part) => sum + (spent[part] || 0), 0);
  return total ? percent(good / total) : "–";
}

function percent(share) {
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/** A table; a column is [title, value of a row, class], the value a text or an element. */
function table(columnsOfTable, rows) {
  const head = columnsOfTable.map(([title, , kind]) => element("th", { textContent: title, className: kind || "" }));
  const body = rows.map((row) => {
    const cells = columnsOfTable.map(([, value, kind]) => element("td", { className: kind || "" }, value(row)));
    return element("tr", {}, ...cells);
  });
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}
