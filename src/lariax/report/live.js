// --- a run that goes on: the numbers are asked for again and again, and the charts stay

const token = new URLSearchParams(location.search).get("token");
const status = document.getElementById("status");
const grids = Object.fromEntries([...document.querySelectorAll("[data-group]")].map((grid) => [grid.dataset.group, grid]));
const charts = new Map();
const PAUSE = 1000;

const place = (panel) => {
  const caption = element("figcaption", {}, element("b", {}, panel.title), element("small", {}, panel.about));
  const host = element("div", { class: "chart" });
  grids[panel.group].append(element("figure", { class: "card" }, caption, host));
  return host;
};
const show = (state) => {
  document.querySelector("h1").textContent = state.title;
  status.textContent = state.words.replace(/e-/g, "e−"); // a line does not break there
  if (!state.runs.length) return;
  const times = Object.fromEntries(Object.entries(state.runs[0].times).map(([name, text]) => [name, numbers(text, Float64Array)]));
  if (!runs.length) {
    runs.push({ name: state.runs[0].name, times });
    shared.against = times.draws.some((v) => v > 0) ? "draws" : "iteration";
    for (const input of document.querySelectorAll("input[name=against]")) input.checked = input.value === shared.against;
  }
  runs[0].times = times;
  for (const panel of state.panels) {
    const key = `${panel.group} ${panel.title}`, chart = charts.get(key);
    if (chart && chart.lines.length === panel.lines.length) {
      chart.lines.forEach((line, i) => { line.values = numbers(panel.lines[i].values, Float32Array); });
    } else {
      const host = chart ? chart.host : place(panel);
      host.replaceChildren();
      if (chart) for (const list of [history, plots]) list.splice(list.indexOf(chart), 1);
      const made = new HistoryChart(host, panel);
      history.push(made);
      charts.set(key, made);
    }
  }
  redrawAll();
};
let count = -1;
const ask = async () => {
  let ended = false;
  try {
    const answer = await fetch(`numbers?token=${encodeURIComponent(token)}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const state = await answer.json();
    if (state.count !== count || state.ended) show(state);
    count = state.count;
    ended = state.ended;
  } catch {
    status.textContent += " The process that ran it no longer answers.";
    ended = true;
  }
  document.documentElement.dataset.records = String(count);
  if (ended) document.documentElement.dataset.ended = "yes";
  else setTimeout(ask, PAUSE);
};
ask();
