// Clients as dots: {names, size, choices: [{label, x, y, lower, diagonal}], columns, worse, better};
// columns are {label, values}. Dots on the worse side of the diagonal are red triangles.
const CELL = 24;

charts.dots = (figure, table) => {
  const state = { choice: table.choices[0], log: false, which: "all", at: null, brush: null };
  const place = html("div", {
    class: "plot", tabindex: 0, role: "application",
    "aria-label": "A dot for each client. Arrow keys go from client to client, Enter shows the row.",
    style: "touch-action: pan-y; cursor: crosshair",
  });
  const row = html("aside", { class: "row hint", "aria-live": "polite" }, "Click a dot to see its row. Or press arrow keys, then Enter.");
  const key = html("div", { class: "key" });
  const count = html("span", { role: "status" });
  const clear = html("button", { type: "button", disabled: true, onclick: () => brush(null) }, "Clear brush");
  let drawing = null;

  const chosen = () => {
    const { choice, which, brush: area } = state;
    return table.names.map((_, i) => {
      if (!hasBoth(choice, i) || (which === "worse") !== isWorse(choice, i) && which !== "all") return false;
      const [x, y] = [choice.x.values[i], choice.y.values[i]];
      return !area || (x >= area[0] && x <= area[1] && y >= area[2] && y <= area[3]);
    });
  };
  const tell = () => {
    const part = chosen();
    const filtered = Boolean(state.brush || state.which !== "all");
    const [some, every] = [part.filter(Boolean).length, table.names.filter((_, i) => hasBoth(state.choice, i)).length];
    const missing = table.names.length - every;
    count.textContent =
      `${filtered ? `${number(some)} of ` : ""}${number(every)} clients` +
      (missing ? `, ${number(missing)} without a value` : "");
    clear.disabled = !state.brush;
    figure.dispatchEvent(new CustomEvent("chosen", { detail: { choice: state.choice, part: filtered ? part : null } }));
  };
  const draw = () => {
    drawing = drawDots(place, table, state);
    key.replaceChildren(...(state.choice.diagonal ? keysOf(table) : []));
    mark();
  };
  const brush = (area) => {
    state.brush = area;
    draw();
    tell();
  };
  const mark = () => {
    const i = state.at;
    const on = i !== null && hasBoth(state.choice, i);
    drawing.mark.setAttribute("visibility", on ? "visible" : "hidden");
    if (!on) return;
    drawing.mark.setAttribute("cx", drawing.px[i]);
    drawing.mark.setAttribute("cy", drawing.py[i]);
    drawing.mark.setAttribute("r", drawing.radius[i] + 4);
  };
  const point = (i, x, y) => {
    state.at = i;
    mark();
    const { choice } = state;
    tip.show(
      [table.names[i], ...[choice.x, choice.y, ...(choice.diagonal ? [table.size] : [])].map((c) => `${c.label}: ${number(c.values[i])}`)].join("\n"),
      x, y,
    );
  };
  const showRow = (i) => {
    row.classList.remove("hint");
    row.replaceChildren(...rowOf(table, i));
  };

  let start = null;
  place.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    start = within(event, drawing.root);
    place.setPointerCapture?.(event.pointerId);
  });
  place.addEventListener("pointermove", (event) => {
    const here = within(event, drawing.root);
    if (start && Math.hypot(here[0] - start[0], here[1] - start[1]) > 4) {
      drawing.band(start, here);
      tip.hide();
      return;
    }
    const i = drawing.at(...here);
    if (i !== null) return point(i, event.clientX, event.clientY);
    state.at = null;
    mark();
    tip.hide();
  });
  place.addEventListener("pointerup", (event) => {
    if (!start) return;
    const here = within(event, drawing.root);
    const [far, from] = [Math.hypot(here[0] - start[0], here[1] - start[1]) > 4, start];
    start = null;
    if (far) return brush(drawing.area(from, here));
    const i = drawing.at(...here);
    if (i !== null) showRow((state.at = i));
  });
  place.addEventListener("pointercancel", () => ((start = null), draw()));
  place.addEventListener("pointerleave", () => tip.hide());
  place.addEventListener("blur", () => tip.hide());
  place.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      const known = table.names.map((_, i) => i).filter((i) => hasBoth(state.choice, i));
      const now = known.indexOf(state.at);
      const step = now < 0 ? 0 : steps[event.key];
      const i = known[Math.max(0, Math.min(known.length - 1, Math.max(now, 0) + step))];
      point(i, ...onScreen(drawing.root, drawing.px[i], drawing.py[i]));
    } else if (event.key === "Enter" && state.at !== null) showRow(state.at);
    else if (event.key === "Escape") {
      tip.hide();
      brush(null);
    } else return;
    event.preventDefault();
  });

  const controls = [
    choose("metric", table.choices.map((choice, i) => [i, choice.label]), (i) => {
      state.choice = table.choices[i];
      brush(null);
    }),
    choose("scale", [["", "linear"], ["log", "log"]], (value) => {
      state.log = value === "log";
      draw();
    }),
    table.choices.some((choice) => choice.diagonal)
      ? choose("clients", [["all", "all"], ["worse", table.worse], ["better", table.better]], (which) => {
          state.which = which;
          draw();
          tell();
        })
      : null,
    clear,
    count,
  ];
  figure.append(
    html("div", { class: "controls" }, ...controls),
    html("div", { class: "clients" }, html("div", {}, place, key), row),
  );
  figure.place = (i) => onScreen(drawing.root, drawing.px[i], drawing.py[i]);
  figure.tell = tell;
  drawn(draw);
  tell();
};

const hasBoth = ({ x, y }, i) => isNumber(x.values[i]) && isNumber(y.values[i]);

function isWorse({ x, y, lower, diagonal }, i) {
  if (!diagonal || lower === null) return false;
  return lower ? y.values[i] > x.values[i] : y.values[i] < x.values[i];
}

function keysOf({ worse, better, size }) {
  const dot = svg("circle", { cx: 6, cy: 6, r: 4.5, fill: "var(--after)", "fill-opacity": 0.6 });
  const wedge = svg("path", { d: "M6 0.5 L11.5 11 L0.5 11 Z", fill: "var(--hurt)" });
  const sign = (mark) => svg("svg", { width: 12, height: 12 }, mark);
  return [
    html("span", {}, sign(dot), better),
    html("span", {}, sign(wedge), worse),
    html("span", {}, `size: ${size.label}`),
  ];
}

function rowOf(table, i) {
  const line = (label, value) => html("tr", {}, html("th", {}, label), html("td", {}, number(value)));
  const shown = table.choices.flatMap(({ x, y, diagonal }) => (diagonal ? [x, y] : [y]));
  // Pages of several methods have the first one's in each choice.
  const lines = [...new Map(shown.map((column) => [column.label, column])).values()];
  const columns = [table.size, ...lines, ...table.columns];
  return [
    html("strong", {}, html("bdi", {}, table.names[i])),
    html("table", {}, ...columns.map((column) => line(column.label, column.values[i]))),
  ];
}

function drawDots(place, table, state) {
  const { choice } = state;
  const { root, width, height, box } = frame(place, choice.diagonal ? 0.8 : 0.6, 620, { top: 24 });
  const known = table.names.map((_, i) => i).filter((i) => hasBoth(choice, i));
  const column = ({ values }) => known.map((i) => values[i]);
  const domain = (values) => {
    const [low, high] = extent(state.log ? values.filter((value) => value > 0) : values);
    const log = state.log && low > 0;
    const margin = (high - low) * 0.04;
    return [log ? [low / 1.05, high * 1.05] : [low - margin, high + margin], log];
  };
  const both = [...column(choice.x), ...column(choice.y)];
  const [xDomain, xLog] = domain(choice.diagonal ? both : column(choice.x));
  const [yDomain, yLog] = domain(choice.diagonal ? both : column(choice.y));
  const x = scale(xDomain, [box.left, box.right], xLog);
  const y = scale(yDomain, [box.bottom, box.top], yLog);
  const [above, below] = choice.lower ? [table.worse, table.better] : [table.better, table.worse];
  const told = choice.diagonal && choice.lower !== null;
  drawAxes(root, box, x, y, {
    x: choice.x.label + (told ? ` (below the line: ${below})` : ""),
    y: choice.y.label + (told ? ` (above the line: ${above})` : ""),
  });
  if (choice.diagonal) {
    root.append(svg("line", { class: "diagonal", x1: box.left, y1: box.bottom, x2: box.right, y2: box.top }));
  }
  const px = new Float64Array(table.names.length);
  const py = new Float64Array(table.names.length);
  const radius = new Float64Array(table.names.length);
  const sizes = column(table.size);
  const most = sizes.reduce((a, b) => Math.max(a, b), 1);
  const areEqual = sizes.every((size) => size === sizes[0]);
  const shrink = Math.min(1, Math.max(0.45, Math.sqrt(600 / known.length)));
  const cells = new Map();
  const context = (place.replaceChildren(root), canvasOver(place, width, height));
  const [good, bad] = [color("after"), color("hurt")];
  const { brush: area, which } = state;
  // Large ones first, so that small ones are not covered; those that are hurt last.
  const order = [...known].sort((a, b) => table.size.values[b] - table.size.values[a]);
  order.sort((a, b) => isWorse(choice, a) - isWorse(choice, b));
  for (const i of order) {
    const [vx, vy] = [choice.x.values[i], choice.y.values[i]];
    if ((xLog && vx <= 0) || (yLog && vy <= 0)) {
      px[i] = NaN;
      continue;
    }
    const share = choice.diagonal && !areEqual ? table.size.values[i] / most : 0.15;
    [px[i], py[i], radius[i]] = [x(vx), y(vy), shrink * (3 + 7 * Math.sqrt(Math.max(0, share)))];
    const cell = `${Math.floor(px[i] / CELL)},${Math.floor(py[i] / CELL)}`;
    cells.has(cell) ? cells.get(cell).push(i) : cells.set(cell, [i]);
    const worse = isWorse(choice, i);
    const inside = !area || (vx >= area[0] && vx <= area[1] && vy >= area[2] && vy <= area[3]);
    const matches = which === "all" || (which === "worse") === worse;
    context.globalAlpha = inside && matches ? (worse ? 0.8 : 0.5) : 0.08;
    context.fillStyle = worse ? bad : good;
    context.beginPath();
    if (worse) {
      const r = radius[i] * 1.15;
      context.moveTo(px[i], py[i] - r);
      context.lineTo(px[i] + r, py[i] + r * 0.8);
      context.lineTo(px[i] - r, py[i] + r * 0.8);
      context.closePath();
    } else context.arc(px[i], py[i], radius[i], 0, 7);
    context.fill();
  }
  context.globalAlpha = 1;
  const mark = svg("circle", { fill: "none", stroke: "var(--focus)", "stroke-width": 3, visibility: "hidden" });
  const band = svg("rect", { class: "brush", visibility: "hidden" });
  const overlay = svg("svg", { viewBox: `0 0 ${width} ${height}`, style: "position: absolute; inset: 0" }, band, mark);
  place.append(overlay);
  const stretch = ([ax, ay], [bx, by]) => {
    const set = { x: Math.min(ax, bx), y: Math.min(ay, by), width: Math.abs(ax - bx), height: Math.abs(ay - by) };
    for (const [name, value] of Object.entries(set)) band.setAttribute(name, value);
    band.setAttribute("visibility", "visible");
  };
  if (area) stretch([x(area[0]), y(area[2])], [x(area[1]), y(area[3])]);
  return {
    root, px, py, radius, mark,
    band: stretch,
    area: ([ax, ay], [bx, by]) => [
      x.invert(Math.min(ax, bx)), x.invert(Math.max(ax, bx)),
      y.invert(Math.max(ay, by)), y.invert(Math.min(ay, by)),
    ],
    // The client whose dot is nearest to a place, within a cell around it.
    at(hx, hy) {
      let [found, least] = [null, CELL * CELL];
      const [cx, cy] = [Math.floor(hx / CELL), Math.floor(hy / CELL)];
      for (let dx = -1; dx <= 1; dx++) {
        for (let dy = -1; dy <= 1; dy++) {
          for (const i of cells.get(`${cx + dx},${cy + dy}`) || []) {
            const away = (px[i] - hx) ** 2 + (py[i] - hy) ** 2;
            if (away < least) [found, least] = [i, away];
          }
        }
      }
      return found;
    },
  };
}
