// How the clients of `dots` are spread, and how those within the brush are.
charts.histograms = (figure, table) => {
  const source = document.querySelector(`[data-chart=dots][data-key="${figure.dataset.key}"]`);
  const grid = html("div", { class: "panels" });
  figure.append(grid);
  let shown = null;
  const draw = () => {
    if (!shown) return;
    const { choice, part } = shown;
    const parts = [];
    if (choice.diagonal) {
      parts.push([choice.x.label, choice.x.color || "before", choice.x.values, choice], [choice.y.label, choice.y.color || "after", choice.y.values, choice]);
      const change = choice.y.values.map((value, i) => (hasBoth(choice, i) ? value - choice.x.values[i] : null));
      parts.push([choice.change || `${choice.label} after minus before`, "after", change, choice, true]);
    } else parts.push([choice.y.label, "after", choice.y.values, choice]);
    const range = choice.diagonal ? extent([...choice.x.values, ...choice.y.values]) : null;
    grid.replaceChildren(
      ...parts.map(([label]) => html("div", { class: "panel" }, html("div", { class: "plot", role: "img", "aria-label": `Histogram of ${label}` }))),
    );
    parts.forEach(([label, fill, values, of, isChange], i) =>
      drawHistogram(grid.children[i].querySelector(".plot"), { label, fill, values, part, isChange, lower: of.lower, range: isChange ? null : range }),
    );
  };
  source.addEventListener("chosen", ({ detail }) => {
    shown = detail;
    draw();
  });
  redraws.push(draw);
  source.tell?.();
};

function drawHistogram(place, { label, fill, values, part, isChange, lower, range }) {
  const { root, box } = frame(place, 0.5, 220, { top: 22 });
  let [low, high] = range || extent(values);
  // Who neither gains nor loses is at 0, which is seen even where nobody is there.
  if (isChange) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const bins = 30;
  let step = (high - low) / bins;
  if (isChange) {
    // An edge at 0 tells those apart who are hurt.
    const below = Math.ceil(Math.max(0, -low) / step);
    low = low < 0 ? -below * step : low;
    high = low + Math.ceil((high - low) / step + 1e-9) * step;
  }
  const number_ = Math.max(1, Math.round((high - low) / step));
  const [every, some] = [new Array(number_).fill(0), new Array(number_).fill(0)];
  values.forEach((value, i) => {
    if (!isNumber(value)) return;
    const bin = Math.max(0, Math.min(number_ - 1, Math.floor((value - low) / step + 1e-9)));
    every[bin]++;
    if (!part || part[i]) some[bin]++;
  });
  const x = scale([low, high], [box.left, box.right]);
  const y = scale([0, Math.max(1, ...every) * 1.05], [box.bottom, box.top]);
  y.isWhole = true;
  drawAxes(root, box, x, y, { x: label, y: "clients" });
  every.forEach((count, bin) => {
    if (!count) return;
    const [left, right] = [x(low + bin * step), x(low + (bin + 1) * step)];
    const hurt = isChange && lower !== null && (lower ? bin * step + low >= -1e-12 : (bin + 1) * step + low <= 1e-12);
    const paint = `var(--${hurt ? "hurt" : fill})`;
    const bar = (n, rest) => svg("rect", { x: left + 0.5, width: Math.max(1, right - left - 1), y: y(n), height: box.bottom - y(n), ...rest });
    root.append(bar(count, { fill: "none", stroke: paint, "stroke-opacity": 0.6 }), bar(some[bin], { fill: paint, "fill-opacity": 0.75 }));
  });
  place.replaceChildren(root);
}

// Rows of a table on two axes: {x, y}.
charts.map = (figure, { x, y }) => {
  const place = html("div", { class: "plot", role: "img", "aria-label": "Map of rows" });
  figure.append(place);
  drawn(() => {
    const { root, width, height, box } = frame(place, 0.6, 460);
    const span = (values) => {
      const [low, high] = extent(values);
      return [low - (high - low) * 0.04, high + (high - low) * 0.04];
    };
    const [across, up] = [scale(span(x), [box.left, box.right]), scale(span(y), [box.bottom, box.top])];
    drawAxes(root, box, across, up, { x: "first axis", y: "second axis" });
    place.replaceChildren(root);
    const context = canvasOver(place, width, height);
    [context.fillStyle, context.globalAlpha] = [color("server"), 0.5];
    for (let i = 0; i < x.length; i++) {
      context.beginPath();
      context.arc(across(x[i]), up(y[i]), 2.5, 0, 7);
      context.fill();
    }
  });
};
