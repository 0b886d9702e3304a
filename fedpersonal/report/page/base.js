// Functions of all charts. Untrusted texts reach the page only as text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const charts = {};
const redraws = [];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const html = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const color = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const isNumber = (value) => Number.isFinite(value);

function number(value, digits = 4) {
  if (!isNumber(value)) return "none";
  const size = Math.abs(value);
  const decimals = size ? Math.max(0, digits - 1 - Math.floor(Math.log10(size))) : 0;
  const text =
    size && (size < 1e-3 || size >= 1e15)
      ? value.toExponential(digits - 2)
      : value.toLocaleString("en-US", { maximumFractionDigits: Math.min(decimals, 8) });
  return text.replaceAll("-", "−");
}

function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${number(value, 3)} ${units[unit]}`;
}

// Least and greatest of the finite numbers; a little apart if they are equal.
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isNumber(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  return low < high ? [low, high] : [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
}

// The domain of an axis for values; `log` only if a value has a logarithm.
function span(values, log = false) {
  const above = values.filter((value) => value > 0);
  const isLog = log && above.length > 0;
  const [low, high] = extent(isLog ? above : values);
  if (isLog) return { domain: [low / 1.05, high * 1.05], log: true };
  const margin = (high - low) * 0.04;
  return { domain: [low - margin, high + margin], log: false };
}

// Maps values in an axis's domain to pixels; NaN for values that it cannot show.
function scale({ domain: [low, high], log = false }, [from, to]) {
  const bend = log ? Math.log : (value) => value;
  const [start, end] = [bend(low), bend(high)];
  const place = (value) => (!isNumber(value) || (log && value <= 0) ? NaN : from + ((bend(value) - start) / (end - start)) * (to - from));
  place.domain = [low, high];
  place.log = log;
  return place;
}

// About `count` round numbers in a scale's domain, and at least three unless only whole numbers fit.
function ticks(place, count) {
  const [low, high] = place.domain;
  if (place.log && high / low > 8) {
    const candidates = [];
    const wide = high / low > 1e4;
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of wide ? [1] : [1, 2, 5]) candidates.push(digit * 10 ** power);
    }
    const inside = candidates.filter((value) => value >= low && value <= high);
    const every = Math.ceil(inside.length / (count + 1));
    return inside.filter((_, index) => index % every === 0);
  }
  const raw = Math.max((high - low) / count, place.isWhole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const steps = [10, 5, 2.5, 1, 0.5].map((digit) => digit * power);
  const multiples = (step) => {
    const values = [];
    for (let i = Math.ceil(low / step); i * step <= high + step / 1e6; i++) values.push(i * step + 0);
    return values;
  };
  const usual = multiples([1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= raw));
  if (usual.length > 2) return usual;
  const finer = steps.filter((step) => !place.isWhole || Number.isInteger(step)).map(multiples);
  return finer.find((values) => values.length > 2) || usual;
}

// Draws grid, ticks and labels around a plot: `box` has left, right, top, bottom in pixels.
function drawAxes(root, box, x, y, labels, format = {}) {
  const [xText, yText] = [format.x || number, format.y || number];
  for (const value of ticks(y, 5)) {
    const at = y(value);
    root.append(
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
      svg("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, yText(value)),
    );
  }
  for (const value of ticks(x, Math.max(2, Math.round((box.right - box.left) / 110)))) {
    const at = x(value);
    root.append(
      svg("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom }),
      svg("text", { x: at, y: box.bottom + 16, "text-anchor": "middle" }, xText(value)),
    );
  }
  root.append(
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" }, labels.x),
  );
  if (labels.y) root.append(svg("text", { x: 2, y: 12 }, labels.y));
}

// An SVG as wide as its container, with the box of the plot area.
function frame(place, ratio, most, margins = {}) {
  const width = Math.max(240, Math.round(place.clientWidth));
  const height = Math.round(Math.min(most, width * ratio));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}` });
  const { left = 58, right = 14, top = 22, bottom = 42 } = margins;
  return { root, width, height, box: { left, right: width - right, top, bottom: height - bottom } };
}

// Draws a chart now, and again whenever the width or the colours change.
function drawAndRedraw(draw) {
  redraws.push(draw);
  draw();
}

const tip = {
  node: document.getElementById("tip"),
  show(text, x, y) {
    this.node.textContent = text;
    this.node.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const left = x + 16 + width > innerWidth ? x - width - 16 : x + 16;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`;
  },
  hide() {
    this.node.hidden = true;
  },
};

function choose(label, options, onChange) {
  const select = html("select", { onchange: () => onChange(select.value) });
  select.append(...options.map(([value, text]) => html("option", { value }, text)));
  return html("label", {}, label, select);
}

// The position of an event, in units of the SVG.
function within(event, root) {
  const place = root.getBoundingClientRect();
  const zoom = root.viewBox.baseVal.width / place.width;
  return [(event.clientX - place.left) * zoom, (event.clientY - place.top) * zoom];
}

// Lets the arrow keys move the read-out of a chart, which ends when the pointer or the focus leaves.
function readByKeys(place, leave, move) {
  place.onpointerleave = leave;
  place.onblur = leave;
  place.onkeydown = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(steps[event.key]);
  };
}

// The position of a point of the SVG on the screen.
function onScreen(root, x, y) {
  const place = root.getBoundingClientRect();
  const zoom = place.width / root.viewBox.baseVal.width;
  return [place.left + x * zoom, place.top + y * zoom];
}

// A canvas over an SVG, sharp on every screen.
function canvasOver(place, width, height) {
  const sharp = Math.max(2, devicePixelRatio || 1);
  const canvas = html("canvas", { width: width * sharp, height: height * sharp, "aria-hidden": "true" });
  place.append(canvas);
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  return context;
}
