// Panels of curves: {panels: [{label, meaning, lower, series: [{name, color, round, y, ...}]}]}. Besides `round`,
// a series may have `seconds` and `bytes`; `low` and `high` for a band around y; and `dash`.
const X_AXES = {
  round: ["round", number],
  seconds: ["seconds in rounds", number],
  bytes: ["bytes of all clients, cumulative", bytes],
};

charts.curves = (figure, { panels }) => {
  const state = { x: "round", log: false, smooth: 0 };
  const all = panels.flatMap((panel) => panel.series);
  const axes = Object.keys(X_AXES).filter((name) => all.some((series) => series[name]));
  const places = panels.map((panel) => html("div", { class: "panel" }, ...headOf(panel)));
  const draw = () => places.forEach((place, i) => drawPanel(place, panels[i], state));
  const set = (name) => (value) => {
    state[name] = value;
    draw();
  };
  const slider = html("input", {
    type: "range", min: 0, max: 20, value: 0, "aria-label": "smoothing",
    oninput: () => set("smooth")(Number(slider.value)),
  });
  figure.append(
    html(
      "div", { class: "controls" },
      choose("over", axes.map((name) => [name, X_AXES[name][0]]), set("x")),
      choose("scale", [["", "linear"], ["log", "log"]], (value) => set("log")(value === "log")),
      html("label", {}, "smoothing", slider),
    ),
    html("div", { class: "panels" }, ...places),
  );
  drawAndRedraw(draw);
};

function headOf({ label, meaning, lower, series }) {
  const better = lower === null ? "" : `, ${lower ? "lower" : "higher"} is better`;
  return [
    html("h3", { title: meaning || null }, label, html("small", {}, better)),
    html("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${label} over rounds; arrow keys read it out` }),
    html("div", { class: "key" }, ...series.map(keyOf)),
  ];
}

function keyOf({ name, color, dash }) {
  const line = svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: `var(--${color})`, "stroke-width": 3, "stroke-dasharray": dash || null });
  return html("span", {}, svg("svg", { width: 22, height: 10 }, line), name);
}

const FEW = 30; // Curves of at most this many points have markers and are not smoothed.

// The mean of each point and its neighbours.
function smoothed(values, share) {
  const half = values.length > FEW ? Math.round((share / 100) * values.length) : 0;
  if (!half) return values;
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter(isNumber);
    return near.reduce((sum, value) => sum + value, 0) / near.length;
  });
}

function drawPanel(panel, { label, series }, state) {
  const place = panel.querySelector(".plot");
  const { root, box } = frame(place, 0.62, 320);
  const curves = series.filter((one) => one[state.x]).map((one) => ({ ...one, x: one[state.x], shown: smoothed(one.y, state.smooth) }));
  const values = curves.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]);
  const [xLow, xHigh] = extent(curves.flatMap((one) => one.x));
  const x = scale({ domain: [Math.min(xLow, 0), xHigh] }, [box.left, box.right]);
  const y = scale(span(values, state.log), [box.bottom, box.top]);
  const [xLabel, xFormat] = X_AXES[state.x];
  drawAxes(root, box, x, y, { x: xLabel, y: "" }, { x: xFormat });
  const path = (xs, ys) => {
    let [text, pen] = ["", "M"];
    ys.forEach((value, i) => {
      const at = y(value);
      if (isNumber(at)) text += `${pen}${x(xs[i]).toFixed(1)} ${at.toFixed(1)}`;
      pen = isNumber(at) ? "L" : "M";
    });
    return text;
  };
  for (const one of curves) {
    const stroke = `var(--${one.color})`;
    if (one.low) {
      const around = path([...one.x, ...[...one.x].reverse()], [...one.low, ...[...one.high].reverse()]);
      root.append(svg("path", { d: `${around}Z`, fill: stroke, "fill-opacity": 0.16, stroke, "stroke-opacity": 0.3 }));
    }
    if (one.shown !== one.y) root.append(svg("path", { d: path(one.x, one.y), fill: "none", stroke, opacity: 0.3 }));
    root.append(svg("path", { d: path(one.x, one.shown), fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": one.dash || null }));
    if (one.y.length <= FEW) {
      one.shown.forEach((value, i) => {
        if (isNumber(y(value))) root.append(svg("circle", { cx: x(one.x[i]), cy: y(value), r: 3, fill: stroke }));
      });
    }
  }
  const hair = svg("line", { class: "hair", y1: box.top, y2: box.bottom, visibility: "hidden" });
  root.append(hair);
  place.replaceChildren(root);
  readOut(place, root, hair, curves, x, box, (at) => `${xLabel} ${xFormat(at)}`);
}

// Shows the values nearest to the pointer, or to the position chosen by arrow keys.
function readOut(place, root, hair, curves, x, box, title) {
  const stops = [...new Set(curves.flatMap((one) => one.x))].sort((a, b) => a - b);
  let at = stops.length - 1;
  const show = (px, py) => {
    const value = stops[at];
    for (const name of ["x1", "x2"]) hair.setAttribute(name, x(value));
    hair.setAttribute("visibility", "visible");
    const lines = curves.map((one) => {
      const i = nearest(one.x, value);
      const band = one.low ? ` (${number(one.low[i])} to ${number(one.high[i])})` : "";
      return `${one.name}: ${number(one.shown[i])}${band}`;
    });
    tip.show([title(value), ...lines].join("\n"), px, py);
  };
  const leave = () => {
    hair.setAttribute("visibility", "hidden");
    tip.hide();
  };
  place.onpointermove = (event) => {
    at = nearest(stops.map(x), within(event, root)[0]);
    show(event.clientX, event.clientY);
  };
  readByKeys(place, leave, (step) => {
    at = Math.max(0, Math.min(stops.length - 1, at + step));
    show(...onScreen(root, x(stops[at]), box.top));
  });
}

// The index of the number nearest to a target.
function nearest(values, target) {
  let [index, least] = [0, Infinity];
  values.forEach((value, i) => {
    const distance = Math.abs(value - target);
    if (distance < least) [index, least] = [i, distance];
  });
  return index;
}
