// Runs by what their clients received and sent: {metrics: [{label, lower}], points: [{name, detail,
// color, shape, x, y}]}; y has a value a metric.
const SHAPES = [
  "M-5 0 a5 5 0 1 0 10 0 a5 5 0 1 0 -10 0",
  "M-4.5 -4.5 h9 v9 h-9 Z",
  "M0 -6 L6 5 L-6 5 Z",
  "M0 -6.5 L6.5 0 L0 6.5 L-6.5 0 Z",
  "M-6 -5 L6 -5 L0 6 Z",
];

charts.scatter = (figure, { metrics, points }) => {
  const state = { metric: 0, log: true, at: 0 };
  const place = html("div", {
    class: "plot", tabindex: 0, role: "img",
    "aria-label": "Metric of each run by the bytes of all its clients; arrow keys read it out",
  });
  const shapeOf = ({ color, shape }, attributes) =>
    svg("path", { d: SHAPES[shape % SHAPES.length], fill: `var(--${color})`, "fill-opacity": 0.75, ...attributes });
  const kinds = [...new Map(points.map((point) => [point.name, point])).values()];
  const keys = kinds.map((point) =>
    html("span", {}, svg("svg", { width: 14, height: 14 }, shapeOf(point, { transform: "translate(7 7)" })), point.name),
  );
  let spots = [];
  const show = (i, px, py) => {
    const [point, { label }] = [points[(state.at = i)], metrics[state.metric]];
    spots.forEach(({ mark }, k) => mark.setAttribute("stroke", k === i ? "var(--focus)" : "none"));
    tip.show([`${point.name}, ${point.detail}`, `${label}: ${number(point.y[state.metric])}`, bytes(point.x)].join("\n"), px, py);
  };
  const leave = () => {
    spots.forEach(({ mark }) => mark.setAttribute("stroke", "none"));
    tip.hide();
  };
  let root = null;
  const draw = () => {
    const { label, lower } = metrics[state.metric];
    const found = frame(place, 0.5, 360, { right: 26 });
    const { box } = found;
    root = found.root;
    const y = points.map((point) => point.y[state.metric]);
    const [low, high] = extent(y);
    const margin = (high - low) * 0.08;
    const [least, most] = extent(points.map((point) => point.x));
    const across = state.log ? [least / 1.25, most * 1.25] : [0, most * 1.05];
    const [toX, toY] = [scale(across, [box.left, box.right], state.log), scale([low - margin, high + margin], [box.bottom, box.top])];
    const better = lower === null ? "" : `, ${lower ? "lower" : "higher"} is better`;
    drawAxes(root, box, toX, toY, { x: "bytes that all clients received and sent", y: label + better }, { x: bytes });
    spots = points.map((point, i) => {
      const at = isNumber(y[i]) ? [toX(point.x), toY(y[i])] : null;
      const mark = shapeOf(point, { transform: at && `translate(${at})`, visibility: at ? null : "hidden", stroke: "none", "stroke-width": 3 });
      root.append(mark);
      return { at, mark };
    });
    place.replaceChildren(root);
  };
  place.onpointermove = (event) => {
    const [px, py] = within(event, root);
    const away = spots.map(({ at }) => (at ? Math.hypot(at[0] - px, at[1] - py) : Infinity));
    const i = away.indexOf(Math.min(...away));
    if (away[i] < 24) show(i, event.clientX, event.clientY);
    else leave();
  };
  readByKeys(place, leave, (step) => {
    const known = points.map((_, i) => i).filter((i) => spots[i].at).sort((a, b) => points[a].x - points[b].x);
    const i = known[Math.max(0, Math.min(known.length - 1, known.indexOf(state.at) + step))];
    show(i, ...onScreen(root, ...spots[i].at));
  });
  figure.append(
    html(
      "div", { class: "controls" },
      choose("metric", metrics.map(({ label }, i) => [i, label]), (i) => ((state.metric = Number(i)), draw())),
      choose("bytes", [["log", "log"], ["", "linear"]], (value) => ((state.log = value === "log"), draw())),
    ),
    place,
    html("div", { class: "key" }, ...keys),
  );
  drawn(draw);
};
