// Scatter plots of clients and of a table's rows, which the pointer or the arrow keys read out.
const CIRCLE = "M-5 0 a5 5 0 1 0 10 0 a5 5 0 1 0 -10 0";
const TRIANGLE = "M0 -6 L6 5 L-6 5 Z";
const NEAR = 24; // Pixels around a point in which the pointer selects it.

// Draws points {x, y (pixels, NaN for none), size, color, isWorse, text} over an SVG; worse ones are
// triangles. Arrow keys step through points in their order.
function drawPoints(place, { root, width, height }, points) {
  place.replaceChildren(root);
  const context = canvasOver(place, width, height);
  const visible = points.filter(({ x, y }) => isNumber(x) && isNumber(y));
  // Large points first, so that they do not cover small ones; worse points last.
  const order = [...visible].sort((a, b) => a.isWorse - b.isWorse || b.size - a.size);
  const [circle, triangle] = [new Path2D(CIRCLE), new Path2D(TRIANGLE)];
  const [worse, usual] = [color("worse"), points.length ? color(points[0].color) : ""];
  for (const { x, y, size, isWorse } of order) {
    context.save();
    context.translate(x, y);
    context.scale(size, size);
    [context.fillStyle, context.globalAlpha] = isWorse ? [worse, 0.8] : [usual, 0.5];
    context.fill(isWorse ? triangle : circle);
    context.restore();
  }
  if (!points.some(({ text }) => text)) return;
  const ring = svg("circle", { fill: "none", stroke: "var(--focus)", "stroke-width": 3, visibility: "hidden" });
  place.append(svg("svg", { viewBox: `0 0 ${width} ${height}`, style: "position: absolute; inset: 0" }, ring));
  let at = -1;
  const show = (point, px, py) => {
    at = visible.indexOf(point);
    fill(ring, { cx: point.x, cy: point.y, r: 5 * point.size + 4, visibility: "visible" }, []);
    tip.show(point.text(), px, py);
  };
  const leave = () => {
    ring.setAttribute("visibility", "hidden");
    tip.hide();
  };
  place.onpointermove = (event) => {
    const [px, py] = within(event, root);
    const distances = visible.map(({ x, y }) => Math.hypot(x - px, y - py));
    const i = nearest(distances, 0);
    if (distances[i] < NEAR) show(visible[i], event.clientX, event.clientY);
    else leave();
  };
  readByKeys(place, leave, (step) => {
    const point = visible[Math.max(0, Math.min(visible.length - 1, (at < 0 ? -Math.sign(step) : at) + step))];
    if (point) show(point, ...onScreen(root, point.x, point.y));
  });
}

const sign = (path, color) =>
  svg("svg", { width: 14, height: 14 }, svg("path", { d: path, transform: "translate(7 7)", fill: `var(--${color})`, "fill-opacity": 0.75 }));

// A scatter plot of clients, with histograms: {names, size, choices: [{label, x, y, lower, diagonal}],
// columns, worse, better}; columns are {label, values}. Worse clients are triangles.
charts.dots = (figure, table) => {
  const state = { choice: table.choices[0], log: false };
  const place = html("div", { class: "plot", tabindex: 0, role: "img", "aria-label": "A dot for each client; arrow keys read them out" });
  const key = html(
    "div", { class: "key" },
    html("span", {}, sign(CIRCLE, "after"), table.better),
    html("span", {}, sign(TRIANGLE, "worse"), table.worse),
    html("span", {}, `size: ${table.size.label}`),
  );
  const grid = html("div", { class: "panels" });
  const count = html("span", { role: "status" });
  const draw = () => {
    const { choice } = state;
    const without = table.names.filter((_, i) => !hasBoth(choice, i)).length;
    count.textContent = `${number(table.names.length - without)} clients${without ? `, ${number(without)} without a value` : ""}`;
    drawDots(place, table, state);
    key.hidden = !choice.diagonal;
    drawHistograms(grid, choice);
  };
  const set = (values) => (Object.assign(state, values), draw());
  figure.append(
    html(
      "div", { class: "controls" },
      choose("metric", table.choices.map(({ label }, i) => [i, label]), (i) => set({ choice: table.choices[i] })),
      choose("scale", [["", "linear"], ["log", "log"]], (value) => set({ log: value === "log" })),
      count,
    ),
    place, key, grid,
  );
  drawAndRedraw(draw);
};

const hasBoth = ({ x, y }, i) => isNumber(x.values[i]) && isNumber(y.values[i]);

function isWorse({ x, y, lower, diagonal }, i) {
  if (!diagonal || lower === null) return false;
  return lower ? y.values[i] > x.values[i] : y.values[i] < x.values[i];
}

function drawDots(place, table, { choice, log }) {
  const { diagonal, lower } = choice;
  const chart = frame(place, diagonal ? 0.8 : 0.6, 620, { top: 24 });
  const { root, box } = chart;
  const clients = table.names.map((_, i) => i).filter((i) => hasBoth(choice, i));
  const [xs, ys, sizes] = [choice.x, choice.y, table.size].map(({ values }) => clients.map((i) => values[i]));
  const x = scale(span(diagonal ? [...xs, ...ys] : xs, log), [box.left, box.right]);
  const y = scale(span(diagonal ? [...xs, ...ys] : ys, log), [box.bottom, box.top]);
  const [above, below] = lower ? [table.worse, table.better] : [table.better, table.worse];
  const hasSides = diagonal && lower !== null;
  drawAxes(root, box, x, y, {
    x: choice.x.label + (hasSides ? ` (below the line: ${below})` : ""),
    y: choice.y.label + (hasSides ? ` (above the line: ${above})` : ""),
  });
  if (diagonal) root.append(svg("line", { class: "diagonal", x1: box.left, y1: box.bottom, x2: box.right, y2: box.top }));
  const most = Math.max(1, ...sizes);
  const areSized = diagonal && sizes.some((size) => size !== sizes[0]);
  const shrink = Math.min(1, Math.max(0.45, Math.sqrt(600 / clients.length)));
  const columns = table.choices.flatMap((one) => (one.diagonal ? [one.x, one.y] : [one.y]));
  // By label, since on comparison pages each choice repeats the column of the reference method.
  const rows = new Map([table.size, choice.x, choice.y, ...columns, ...table.columns].map((column) => [column.label, column]));
  const points = clients.map((i, k) => ({
    x: x(xs[k]), y: y(ys[k]),
    size: shrink * (0.6 + 1.4 * Math.sqrt(areSized ? Math.max(0, sizes[k]) / most : 0.15)),
    color: "after", isWorse: isWorse(choice, i),
    text: () => [table.names[i], ...[...rows.values()].map(({ label, values }) => `${label}: ${number(values[i])}`)].join("\n"),
  }));
  drawPoints(place, chart, points);
}

// Histograms over clients of both columns of a choice, and of their difference.
function drawHistograms(grid, { label, change, x, y, lower, diagonal }) {
  const differences = y.values.map((value, i) => (isNumber(value) && isNumber(x.values[i]) ? value - x.values[i] : null));
  const shared = diagonal ? extent([...x.values, ...y.values]) : extent(y.values);
  const parts = [
    { label: y.label, color: y.color || "after", values: y.values, range: shared },
    { label: change || `${label} after minus before`, color: "after", values: differences, range: extent(differences), isChange: true, lower },
  ];
  if (diagonal) parts.unshift({ label: x.label, color: x.color || "before", values: x.values, range: shared });
  else parts.pop();
  grid.replaceChildren(
    ...parts.map((part) => html("div", { class: "panel" }, html("div", { class: "plot", role: "img", "aria-label": `Histogram of ${part.label}` }))),
  );
  parts.forEach((part, i) => drawHistogram(grid.children[i].firstChild, part));
}

function drawHistogram(place, { label, color: name, values, range: [low, high], isChange, lower }) {
  const { root, box } = frame(place, 0.5, 220);
  // The range includes 0, where clients neither gain nor lose.
  if (isChange) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const step = (high - low) / 30;
  if (isChange) {
    // A bin edge at 0 separates worse clients from others.
    low = low < 0 ? -Math.ceil(-low / step) * step : low;
    high = low + Math.ceil((high - low) / step + 1e-9) * step;
  }
  const counts = new Array(Math.max(1, Math.round((high - low) / step))).fill(0);
  for (const value of values.filter(isNumber)) {
    counts[Math.max(0, Math.min(counts.length - 1, Math.floor((value - low) / step + 1e-9)))]++;
  }
  const x = scale({ domain: [low, high] }, [box.left, box.right]);
  const y = scale({ domain: [0, Math.max(1, ...counts) * 1.05] }, [box.bottom, box.top]);
  y.isWhole = true;
  drawAxes(root, box, x, y, { x: label, y: "clients" });
  counts.forEach((count, bin) => {
    const [left, right] = [low + bin * step, low + (bin + 1) * step];
    const isWorseBin = isChange && lower !== null && (lower ? left >= -1e-12 : right <= 1e-12);
    const fill = `var(--${isWorseBin ? "worse" : name})`;
    const bar = { x: x(left) + 0.5, width: Math.max(1, x(right) - x(left) - 1), y: y(count), height: box.bottom - y(count) };
    if (count) root.append(svg("rect", { ...bar, fill, "fill-opacity": 0.75 }));
  });
  place.replaceChildren(root);
}

const LETTER = 6.4; // Pixels.

// Writes names next to points if there is room, starting with the farthest from the middle.
function nameFarthest({ root, box }, points, [x, y]) {
  const away = (point) => Math.hypot(point.x - x, point.y - y);
  const taken = [];
  for (const point of [...points].sort((a, b) => away(b) - away(a)).slice(0, 300)) {
    const text = point.name.length > 30 ? `${point.name.slice(0, 29)}…` : point.name;
    const width = LETTER * text.length + 8;
    const left = point.x + width > box.right ? point.x - width : point.x;
    const [right, top, bottom] = [left + width, point.y - 8, point.y + 8];
    if (left < box.left || top < box.top || bottom > box.bottom) continue;
    if (taken.some((one) => left < one.right && one.left < right && top < one.bottom && one.top < bottom)) continue;
    taken.push({ left, right, top, bottom });
    if (taken.length > Math.min(24, (box.right - box.left) / 40)) break;
    const anchor = left < point.x ? "end" : "start";
    root.append(svg("text", { class: "name", x: point.x + (left < point.x ? -6 : 6), y: point.y + 4, "text-anchor": anchor }, text));
  }
}

// Rows of a table on two axes: {x, y, names}; `names` may be null.
charts.map = (figure, { x, y, names }) => {
  const place = html("div", { class: "plot", tabindex: names ? 0 : null, role: "img", "aria-label": `Map of rows${names ? "; arrow keys read them out" : ""}` });
  figure.append(place);
  drawAndRedraw(() => {
    const chart = frame(place, place.clientWidth < 600 ? 0.9 : 0.6, 460);
    const { root, box } = chart;
    const [across, up] = [scale(span(x), [box.left, box.right]), scale(span(y), [box.bottom, box.top])];
    drawAxes(root, box, across, up, { x: "first axis", y: "second axis" });
    const points = x.map((_, i) => ({
      x: across(x[i]), y: up(y[i]), size: 0.5, color: "server", isWorse: false,
      name: names && names[i], text: names && (() => names[i]),
    }));
    if (names) nameFarthest(chart, points, [across(0), up(0)]);
    drawPoints(place, chart, points);
  });
};
