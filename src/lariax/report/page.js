// --- put together

const hasTimes = runs.some((run) => run.times.draws?.length);
if (!runs.some((run) => run.times.draws?.some((v) => v > 0))) shared.against = "iteration";
for (const host of document.querySelectorAll("[data-panel]")) if (hasTimes) history.push(new HistoryChart(host, data.panels[host.dataset.panel]));
const kinds = { lines: Points, scatter: Points, bars: Bars, heatmap: Heatmap };
for (const host of document.querySelectorAll("[data-picture]")) {
  const picture = data.pictures[host.dataset.picture];
  if (Object.keys(picture.series).length) new kinds[picture.kind](host, picture);
}
for (const input of document.querySelectorAll("input[name=against]")) {
  input.checked = input.value === shared.against;
  input.addEventListener("change", () => { shared.against = input.value; shared.range = null; history.forEach((chart) => chart.hideCursor()); redrawAll(); });
}
const logX = document.getElementById("log-x");
logX.checked = false;
logX.addEventListener("change", () => { shared.logX = logX.checked; shared.range = null; redrawAll(); });
document.getElementById("reset").addEventListener("click", () => { shared.range = null; redrawAll(); });
document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
const print = (now) => { printing = now; plots.forEach((plot) => plot.draw()); };
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
document.documentElement.dataset.ready = "yes";
