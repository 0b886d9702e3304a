// Draws all charts of the page, and redraws them when width or colours change.
for (const figure of document.querySelectorAll("[data-chart]")) {
  charts[figure.dataset.chart](figure, data[figure.dataset.key]);
}
const redraw = () => redraws.forEach((draw) => draw());
let wait = 0;
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(wait);
  wait = setTimeout(redraw, 100);
});
// A chart in a fold has no width until the fold is opened.
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
for (const [event, isLight] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    document.documentElement.classList.toggle("light", isLight);
    redraw();
  });
}
