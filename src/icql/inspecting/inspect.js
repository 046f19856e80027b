"use strict";
// Everything that comes from data goes in as text (textContent), never as markup.
const D = JSON.parse(document.getElementById("data").textContent);
const COLOURS = {
  value: "value of the policy's action",
  logged_value: "value of the logged action",
  outcome: "logged outcome (discounted reward that followed)",
  advantage: "advantage of the logged action over the policy's",
  away: "policy's distance from the logged action (share of range)",
  far: "distance from the nearest state of another episode",
  episode: "episode",
};
const VIRIDIS = [[68,1,84],[72,40,120],[62,74,137],[49,104,142],[38,130,142],[31,158,137],[53,183,121],[109,205,89],[180,222,44],[253,231,37]];
const DIVERGING = [[178,24,43],[214,96,77],[244,165,130],[190,190,190],[146,197,222],[67,147,195],[33,102,172]];
const page = document.getElementById("page");
const two = D.runs.length > 1;
const state = { colour: D.runs[0].values ? "value" : "outcome", chosen: null, episode: null, asked: 0 };

// --- numbers ------------------------------------------------------------------------------------
function unpack(o) {
  const bytes = Uint8Array.from(atob(o.data), (c) => c.charCodeAt(0));
  return { width: o.width, of: o.kind === "int" ? new Int32Array(bytes.buffer) : new Float32Array(bytes.buffer) };
}
function unpackAll(fields) {
  const found = {};
  for (const name in fields) found[name] = unpack(fields[name]);
  return found;
}
function at(fields, i) {
  const found = {};
  for (const name in fields) {
    const { of, width } = fields[name];
    found[name] = Array.from(of.subarray(i * width, (i + 1) * width));
  }
  return found;
}
function said(x) {
  if (x === null || x === undefined || !isFinite(x)) return "–";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  const size = Math.abs(x);
  return size !== 0 && (size >= 1e6 || size < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
}
const percent = (x) => `${Math.round(100 * x)} %`;
const count = (n) => n.toLocaleString("en");

// --- elements -----------------------------------------------------------------------------------
function el(kind, attributes, ...inside) {
  const made = document.createElement(kind);
  for (const name in attributes || {}) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), attributes[name]);
    else if (attributes[name] !== null) made.setAttribute(name, attributes[name]);
  }
  for (const one of inside) if (one !== null && one !== undefined) made.append(one);
  return made;
}
function table(caption, heads, rows, kind) {
  const head = el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell))));
  return el("div", { class: "scroll" }, el("table", { class: kind || null },
    caption ? el("caption", {}, caption) : null, el("thead", {}, head), el("tbody", {}, ...body)));
}
const withUnit = (one) => (one.unit ? `${one.name} (${one.unit})` : one.name);
function facts(pairs) {
  return el("div", { class: "facts" }, ...pairs.filter((p) => p).map(([name, value]) =>
    el("div", {}, el("span", {}, name), el("b", {}, value))));
}

// --- drawing ------------------------------------------------------------------------------------
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function begin(canvas) {
  const box = canvas.getBoundingClientRect(), sharp = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * sharp));
  canvas.height = Math.max(1, Math.round(box.height * sharp));
  const c = canvas.getContext("2d");
  c.scale(sharp, sharp);
  c.clearRect(0, 0, box.width, box.height);
  c.font = "11px system-ui, sans-serif";
  return { c, w: box.width, h: box.height };
}
function ramp(list, t) {
  const x = Math.min(Math.max(t, 0), 1) * (list.length - 1), i = Math.min(Math.floor(x), list.length - 2), f = x - i;
  const mix = list[i].map((a, k) => Math.round(a + f * (list[i + 1][k] - a)));
  return `rgb(${mix.join(",")})`;
}
function quantile(sorted, q) { return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]; }
function range(values) {
  const sorted = Float32Array.from(values).filter(isFinite).sort();
  if (!sorted.length) return [0, 1];
  const low = quantile(sorted, 0.02), high = quantile(sorted, 0.98);
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

// --- the map ------------------------------------------------------------------------------------
const MAP = unpackAll(D.map);
const N = MAP.row.of.length;
const ON = D.maps.map(unpackAll);
const KEPT = D.served ? null : D.kept.map(unpackAll);
const POINTS = D.served ? null : unpack(D.points.point).of; // places on the map with all details
const xs = new Float32Array(N), ys = new Float32Array(N);
for (let i = 0; i < N; i++) { xs[i] = MAP.place.of[2 * i]; ys[i] = MAP.place.of[2 * i + 1]; }
function extent(values) {
  const sorted = Float32Array.from(values).sort(), low = quantile(sorted, 0.001), high = quantile(sorted, 0.999);
  const more = 0.04 * (high - low) || 1;
  return [low - more, high + more];
}
const [x0, x1] = extent(xs), [y0, y1] = extent(ys);
const keep = (t, size) => Math.min(Math.max(t, 3), size - 3); // the farthest ones lie on the edge
const toX = (x, w) => keep(((x - x0) / (x1 - x0)) * w, w);
const toY = (y, h) => keep(h - ((y - y0) / (y1 - y0)) * h, h);

function colouring(r) {
  const name = state.colour;
  if (name === "episode") {
    const of = MAP.episode.of;
    return { colour: (i) => `hsl(${(of[i] * 137.508) % 360} 60% 52%)`, order: null, values: of };
  }
  const column = ON[r][name];
  if (!column) return null;
  let [low, high] = range(column.of);
  const list = name === "advantage" ? DIVERGING : VIRIDIS;
  if (name === "advantage") { const wide = Math.max(Math.abs(low), Math.abs(high)) || 1; low = -wide; high = wide; }
  return { colour: (i) => ramp(list, (column.of[i] - low) / (high - low)), low, high, list, values: column.of };
}
const maps = D.runs.map(() => ({}));
function drawMap(r) {
  const { canvas, scale, low, high, missing } = maps[r];
  const { c, w, h } = begin(canvas), how = colouring(r);
  c.fillStyle = css("--panel");
  c.fillRect(0, 0, w, h);
  scale.hidden = !how || state.colour === "episode";
  missing.textContent = how ? "" : "This run has no such number: it has no critic.";
  const size = N > 8000 ? 1.6 : N > 1500 ? 2.2 : 3;
  for (let i = 0; i < N; i++) {
    c.fillStyle = how ? how.colour(i) : css("--line");
    c.fillRect(toX(xs[i], w) - size / 2, toY(ys[i], h) - size / 2, size, size);
  }
  if (how && how.list) {
    low.textContent = said(how.low);
    high.textContent = said(how.high);
    const s = begin(scale);
    for (let x = 0; x < s.w; x++) { s.c.fillStyle = ramp(how.list, x / s.w); s.c.fillRect(x, 0, 1.5, s.h); }
  }
  const one = state.chosen;
  if (!one || !one.runs) return;
  const own = one.runs[r], px = toX(one.shared.place[0], w), py = toY(one.shared.place[1], h);
  const biggest = Math.max(...(own.near_part || [1]).map(Math.abs)) || 1;
  own.near.forEach((_, j) => {
    const x = toX(own.near_place[2 * j], w), y = toY(own.near_place[2 * j + 1], h);
    c.strokeStyle = css("--text");
    c.lineWidth = 1.3;
    c.beginPath();
    c.arc(x, y, own.near_part ? 2.5 + 5 * Math.sqrt(Math.abs(own.near_part[j]) / biggest) : 4, 0, 7);
    c.stroke();
  });
  cross(c, px, py);
}
function cross(c, x, y) {
  for (const [colour, width] of [[css("--back"), 5], [css("--ring"), 2.5]]) {
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.beginPath();
    c.arc(x, y, 8, 0, 7);
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) { c.moveTo(x + 4 * dx, y + 4 * dy); c.lineTo(x + 13 * dx, y + 13 * dy); }
    c.stroke();
  }
}
const clickable = POINTS || Int32Array.from({ length: N }, (_, i) => i);
function nearestPoint(canvas, px, py) {
  const box = canvas.getBoundingClientRect();
  let best = -1, least = Infinity;
  clickable.forEach((i, k) => {
    const d = (toX(xs[i], box.width) - px) ** 2 + (toY(ys[i], box.height) - py) ** 2;
    if (d < least) { least = d; best = k; }
  });
  return best;
}
function clickMap(event) {
  const box = event.target.getBoundingClientRect();
  choosePoint(nearestPoint(event.target, event.clientX - box.left, event.clientY - box.top));
}
function keyMap(event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (!way) return;
  event.preventDefault();
  const from = state.chosen && state.chosen.shared ? state.chosen.shared.place : [(x0 + x1) / 2, (y0 + y1) / 2];
  let best = -1, least = Infinity;
  clickable.forEach((i, k) => {
    const dx = (xs[i] - from[0]) / (x1 - x0), dy = (ys[i] - from[1]) / (y1 - y0);
    const along = dx * way[0] + dy * way[1], beside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    const cost = along + 2 * beside;
    if (along > 0.004 && cost < least) { least = cost; best = k; }
  });
  if (best >= 0) choosePoint(best);
}

// --- one state ----------------------------------------------------------------------------------
function choosePoint(k) {
  if (D.served) return chooseRow(MAP.row.of[clickable[k]]);
  show({ shared: at(KEPT[0], k), runs: KEPT.slice(1).map((f) => at(f, k)) });
}
function chooseRow(row) {
  if (D.served) return ask(`row/${row}`);
  const rows = KEPT[0].row.of;
  let best = 0;
  for (let k = 0; k < rows.length; k++) if (Math.abs(rows[k] - row) < Math.abs(rows[best] - row)) best = k;
  choosePoint(best);
}
async function ask(where, body) {
  const mine = ++state.asked;
  try {
    const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
    const answer = await fetch(where, options), found = await answer.json();
    if (mine !== state.asked) return; // another click came in between
    if (!answer.ok) throw new Error(found.error);
    show(found);
  } catch (error) {
    message.textContent = error.message || "The server does not answer any more.";
  }
}
function show(found) {
  message.textContent = "";
  state.chosen = found;
  D.runs.forEach((_, r) => drawMap(r));
  drawState();
  drawSeries();
}
function alarmBox(run, own) {
  if (run.limit === null || !own.far) return null;
  const far = own.far[0], rings = far > run.limit;
  return el("p", { class: rings ? "alarm rings" : "alarm" },
    el("b", {}, rings ? "The alarm rings. " : "The alarm is silent. "),
    `Nearest ${state.chosen.shared.row ? "state of another episode" : "logged state"}: ${said(far)} away; it rings beyond ${said(run.limit)}.`);
}
function actionTable(own, shared) {
  const logged = shared.logged;
  if (D.choices.length) {
    const name = (x) => D.choices[Math.round(x)];
    return table("", ["action", "policy", ...(logged ? ["logged"] : [])],
      [[withUnit(D.actions[0]), name(own.action[0]), ...(logged ? [name(logged[0])] : [])]], "names");
  }
  const rows = D.actions.map((a, i) => [withUnit(a), said(own.action[i]),
    ...(logged ? [said(logged[i]), `${(100 * (own.action[i] - logged[i]) / (a.high - a.low || 1)).toFixed(1)} %`] : [])]);
  return table("", ["action", "policy", ...(logged ? ["logged", "difference, of range"] : [])], rows, "names");
}
function evidenceTable(run, own, shared) {
  const heads = ["row", "episode", "step", "distance", "outcome"], parts = Boolean(own.near_part);
  if (parts) heads.push("part");
  if (parts && own.near_logged_part) heads.push("part, logged");
  const rows = own.near.map((row, j) => {
    const go = el("button", { type: "button", title: "show this row", onclick: () => chooseRow(row) }, String(row));
    const line = [D.served ? go : String(row), String(own.near_episode[j]), String(own.near_step[j]), said(own.near_distance[j]), said(own.near_outcome[j])];
    if (parts) line.push(said(own.near_part[j]));
    if (parts && own.near_logged_part) line.push(said(own.near_logged_part[j]));
    return line;
  });
  const total = own.counts.reduce((a, b) => a + b, 0), more = total - rows.length;
  const caption = parts
    ? `The value of the policy's action is ${said(own.prior[0])} without any context, plus these parts${more > 0 ? `, plus ${said(own.rest_part[0])} of ${more} more rows` : ""}.` + (own.near_logged_part ? " Last column: the same for the logged action." : "")
    : "The nearest logged states of other episodes.";
  return table(caption, heads, rows);
}
function histogram(canvas, own) {
  const { c, w, h } = begin(canvas), marks = [];
  if (own.value) marks.push([own.value[0], css("--ring"), "policy's"]);
  if (own.logged_value) marks.push([own.logged_value[0], css("--link"), "logged"]);
  let low = Math.min(own.span[0], ...marks.map((m) => m[0])), high = Math.max(own.span[1], ...marks.map((m) => m[0]));
  if (!(high > low)) { low -= 0.5; high += 0.5; }
  const x = (v) => 6 + ((v - low) / (high - low)) * (w - 12), floor = h - 16, top = Math.max(...own.counts);
  const each = (own.span[1] - own.span[0]) / own.counts.length;
  c.fillStyle = css("--soft");
  own.counts.forEach((n, i) => {
    const a = x(own.span[0] + i * each), b = x(own.span[0] + (i + 1) * each), tall = (n / top) * (floor - 18);
    if (n) c.fillRect(a, floor - tall, Math.max(2, b - a - 1), tall);
  });
  c.strokeStyle = css("--line");
  c.lineWidth = 1;
  c.strokeRect(6, floor, w - 12, 0);
  c.fillText(said(low), 4, h - 3);
  c.textAlign = "right";
  c.fillText(said(high), w - 4, h - 3);
  marks.forEach(([v, colour, name], i) => {
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(x(v), 2);
    c.lineTo(x(v), floor);
    c.stroke();
    c.textAlign = x(v) > w / 2 ? "right" : "left";
    c.fillText(name, x(v) + (x(v) > w / 2 ? -4 : 4), 11 + 12 * i);
  });
}
function line(c, xsOf, ysOf, colour) {
  c.strokeStyle = colour;
  c.lineWidth = 1.8;
  c.beginPath();
  let open = false;
  ysOf.forEach((y, i) => {
    if (y === null || !isFinite(y)) { open = false; return; }
    if (open) c.lineTo(xsOf(i), y); else c.moveTo(xsOf(i), y);
    open = true;
  });
  c.stroke();
}
function drawTrace(canvas, trace) {
  const { c, w, h } = begin(canvas);
  plot(c, w, h, trace.map((_, i) => i + 1), [[trace, css("--link")]], "layer");
}
function plot(c, w, h, steps, lines, name, mark) {
  const flat = lines.flatMap((l) => l[0]).filter((v) => v !== null && isFinite(v));
  let low = Math.min(...flat), high = Math.max(...flat);
  if (!(high > low)) { low -= 0.5; high += 0.5; }
  const left = 52, foot = h - 16, first = steps[0], last = steps[steps.length - 1];
  const x = (s) => left + ((s - first) / (last - first || 1)) * (w - left - 8), y = (v) => 6 + (1 - (v - low) / (high - low)) * (foot - 12);
  c.strokeStyle = css("--line");
  c.lineWidth = 1;
  c.fillStyle = css("--soft");
  for (const v of [low, high]) { c.beginPath(); c.moveTo(left, y(v)); c.lineTo(w - 8, y(v)); c.stroke(); c.textAlign = "right"; c.fillText(said(v), left - 4, y(v) + 4); }
  if (low < 0 && high > 0) { c.setLineDash([3, 3]); c.beginPath(); c.moveTo(left, y(0)); c.lineTo(w - 8, y(0)); c.stroke(); c.setLineDash([]); }
  c.textAlign = "left";
  c.fillText(`${name} ${first}`, left, h - 3);
  c.textAlign = "right";
  c.fillText(String(last), w - 8, h - 3);
  for (const [values, colour] of lines) line(c, (i) => x(steps[i]), values.map((v) => (v === null || !isFinite(v) ? null : y(v))), colour);
  if (mark !== undefined && mark >= first && mark <= last) {
    c.strokeStyle = css("--ring");
    c.beginPath();
    c.moveTo(x(mark), 2);
    c.lineTo(x(mark), foot);
    c.stroke();
  }
}
const statePanels = D.runs.map(() => el("section", { class: "card", "aria-live": "polite" }, el("h2", {}, "A state"),
  el("p", { class: "soft" }, "Click a point of the map, or move with the arrow keys once it has the focus.")));
function drawState() {
  const { shared, runs } = state.chosen;
  D.runs.forEach((run, r) => {
    const own = runs[r], panel = statePanels[r];
    const hist = el("canvas", { class: "small", role: "img", "aria-label": "histogram of the outcomes of the rows nearby" });
    const trace = own.trace ? el("canvas", { class: "small", role: "img", "aria-label": "value after every layer" }) : null;
    const title = shared.row ? `Row ${shared.row[0]}: episode ${shared.episode[0]}, step ${shared.step[0]}` : "A state that you gave";
    const rank = (name) => (own[`${name}_rank`] ? `${percent(own[`${name}_rank`][0])} of the outcomes nearby are below it` : "");
    panel.replaceChildren(el("h2", {}, two ? `${run.name}. ${title}` : title),
      ...[alarmBox(run, own)].filter(Boolean),
      facts([own.value && ["value, policy's action", said(own.value[0])], own.logged_value && ["value, logged action", said(own.logged_value[0])],
        own.away && ["policy from logged", D.choices.length ? (own.away[0] ? "differs" : "same") : `${percent(own.away[0])} of range`]]),
      el("h3", {}, "What the policy would do"), actionTable(own, shared),
      el("h3", {}, "What followed in similar states"),
      hist,
      el("p", { class: "soft" }, `Outcomes of ${own.counts.reduce((a, b) => a + b, 0)} logged rows; nine tenths between ${said(own.most[0])} and ${said(own.most[1])}. ` +
        (own.value ? `Policy's action: ${rank("value")}. ` : "") + (own.logged_value ? `Logged action: ${rank("logged_value")}.` : "")),
      el("h3", {}, run.explains ? "The evidence: rows behind the value" : "Nearest logged states"), evidenceTable(run, own, shared),
      ...(trace ? [el("h3", {}, "Value after every in-context TD step (first critic)"), trace] : []),
      el("details", {}, el("summary", {}, `The state's ${D.columns.length} numbers`),
        table("", ["column", "value"], D.columns.map((col, i) => [withUnit(col), said(shared.state[i])]), "names")));
    histogram(hist, own);
    if (trace) drawTrace(trace, own.trace);
  });
}

// --- one episode --------------------------------------------------------------------------------
const seriesBox = el("div");
const EPISODES = D.served ? unpackAll(D.episodes) : null;
async function chooseEpisode(place) {
  if (!D.served) {
    const one = D.series[place];
    const lists = (fields) => { const u = unpackAll(fields), f = {}; for (const n in u) f[n] = Array.from(u[n].of); return f; };
    state.episode = { ...one, series: lists(one.series), runs: one.runs.map(lists) };
  } else {
    try {
      const answer = await fetch(`episode/${place}`), found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      state.episode = found;
    } catch (error) { message.textContent = error.message; return; }
  }
  drawSeries();
}
const LINES = [
  ["Values: policy's action, logged action, and the logged outcome", ["value", "logged_value", "outcome"], ["--ring", "--link", "--soft"]],
  ["Advantage of the logged action", ["advantage"], ["--link"]],
  ["Policy's distance from the logged action (share of range)", ["away"], ["--mild"]],
  ["Distance from the nearest state of another episode", ["far"], ["--good"]],
];
const NAMES = { value: "policy's action", logged_value: "logged action", outcome: "logged outcome" };
function drawSeries() {
  const one = state.episode;
  if (!one) return;
  const chosen = state.chosen && state.chosen.shared.row && state.chosen.shared.episode[0] === one.episode ? state.chosen.shared.step[0] : undefined;
  const thinned = one.series.row.length < one.length ? `, of which ${count(one.series.row.length)} are drawn` : "";
  const parts = [];
  seriesBox.replaceChildren(el("p", {}, `Episode ${one.episode}: logged return ${said(one.return)}, ${count(one.length)} transitions${thinned}. Click a line to see that state.`),
    el("div", { class: two ? "columns" : "" }, ...D.runs.map((run, r) => el("div", {}, two ? el("h3", {}, run.name) : null,
      ...LINES.filter(([, fields]) => fields.some((f) => one.runs[r][f])).map(([name, fields, colours]) => {
        const there = fields.map((f, i) => [one.runs[r][f], colours[i], f]).filter((l) => l[0]);
        const canvas = el("canvas", { class: "chart", role: "img", "aria-label": name, onclick: (event) => clickSeries(event, one) });
        parts.push(() => { const { c, w, h } = begin(canvas); plot(c, w, h, one.series.step, there.map((l) => [l[0], css(l[1])]), "step", chosen); });
        const key = there.length > 1 ? el("p", { class: "key" }, ...there.map((l) => { const dot = el("i"); dot.style.background = css(l[1]); return el("span", {}, dot, NAMES[l[2]]); })) : null;
        return el("figure", {}, el("figcaption", {}, there.length > 1 ? name : there[0][2] === "outcome" ? "Logged outcome" : name), canvas, key);
      })))));
  parts.forEach((draw) => draw());
}
function clickSeries(event, one) {
  const box = event.target.getBoundingClientRect(), steps = one.series.step;
  const share = (event.clientX - box.left - 52) / (box.width - 60);
  const want = steps[0] + share * (steps[steps.length - 1] - steps[0]);
  let best = 0;
  steps.forEach((s, i) => { if (Math.abs(s - want) < Math.abs(steps[best] - want)) best = i; });
  chooseRow(one.series.row[best]);
}

// --- the page -----------------------------------------------------------------------------------
const message = el("p", { class: "error", role: "alert" });
function sampling() {
  const some = N < D.transitions ? `The map shows ${count(N)} of ${count(D.transitions)} logged states, drawn at random` : `The map shows all ${count(N)} logged states`;
  const where = ", on the first two principal directions of the standardised states. ";
  if (D.served) return `${some}${where}Any row or state can be asked about.`;
  return `${some}${where}This file keeps the evidence of ${count(POINTS.length)} of them, spread over the map (a click goes to the nearest of these), and ${count(D.series.length)} of the episodes, from the worst to the best paid. "icql inspect RUN" answers for all.`;
}
function build() {
  const colours = Object.keys(COLOURS).filter((name) => name === "episode" || ON.some((m) => m[name]));
  const pick = el("select", { name: "colour", onchange: (e) => { state.colour = e.target.value; D.runs.forEach((_, r) => drawMap(r)); } },
    ...colours.map((name) => el("option", { value: name }, COLOURS[name])));
  pick.value = state.colour;
  const row = el("form", { onsubmit: (e) => { e.preventDefault(); const n = Number(row.elements.row.value); if (Number.isInteger(n) && n >= 0) chooseRow(n); } },
    el("label", {}, D.served ? "row of the log" : "row of the log (nearest kept)", el("input", { name: "row", inputmode: "numeric", autocomplete: "off" })), el("button", {}, "Show"));
  const paste = !D.served ? null : el("form", { onsubmit: (e) => { e.preventDefault(); pasted(paste.elements.state.value); } },
    el("label", {}, `a state: ${D.columns.length} numbers`, el("input", { name: "state", autocomplete: "off", placeholder: "paste a row" })), el("button", {}, "Ask"));
  const bars = el("div", { class: "bar" }, el("label", {}, "colour", pick), row, paste);
  const cards = D.runs.map((run, r) => {
    const m = maps[r];
    m.canvas = el("canvas", { class: "map", tabindex: "0", role: "application", "aria-label": `map of states, ${run.name}; arrow keys move between states`, onclick: clickMap, onkeydown: keyMap });
    m.low = el("span"); m.high = el("span"); m.missing = el("span");
    m.scale = el("canvas", { class: "scale", "aria-hidden": "true" });
    return el("section", { class: "card" }, el("h2", {}, `${run.name} (${run.algo})`), m.canvas,
      el("div", { class: "scale-row" }, m.low, m.scale, m.high, m.missing),
      ...run.notes.map((note) => el("p", { class: "soft" }, note)));
  });
  const ids = D.served ? Array.from(EPISODES.id.of) : D.series.map((s) => s.episode);
  const paid = D.served ? EPISODES.paid.of : D.series.map((s) => s.return);
  const episode = el("select", { name: "episode", onchange: (e) => { if (e.target.value !== "") chooseEpisode(Number(e.target.value)); } },
    el("option", { value: "" }, "choose …"), ...ids.map((id, i) => el("option", { value: String(i) }, `${id}: return ${said(paid[i])}`)));
  const episodes = el("section", { class: "card later" }, el("h2", {}, "An episode in time"), el("label", {}, "episode: its logged return", episode), seriesBox);
  page.replaceChildren(
    el("header", {}, el("h1", {}, `What stands behind ${D.runs.map((r) => r.name).join(" and ")}`),
      el("p", {}, `Data: ${D.data}, ${count(D.transitions)} transitions. ${sampling()}`)),
    bars, message,
    two ? el("div", { class: "columns" }, ...D.runs.map((_, r) => el("div", {}, cards[r], statePanels[r])))
      : el("div", { class: "columns" }, el("div", { class: "left" }, cards[0], episodes), el("div", { class: "first" }, statePanels[0])),
    ...(two ? [episodes] : []),
    el("p", { class: "soft" }, `icql ${D.version}. The alarm says that nothing like a state was logged; not that it is dangerous, and not that what was logged is right.`));
  if (ids.length) { episode.value = "0"; chooseEpisode(0); }
  redraw();
  const { canvas } = maps[0], box = canvas.getBoundingClientRect(); // an example to begin with
  choosePoint(nearestPoint(canvas, box.width / 2, box.height / 2));
}
function pasted(text) {
  const numbers = text.trim().replace(/^\[|\]$/g, "").split(/[\s,;]+/).filter((x) => x !== "").map(Number);
  if (numbers.length !== D.columns.length || !numbers.every(isFinite)) {
    message.textContent = `Give ${D.columns.length} numbers: ${D.columns.map(withUnit).join(", ")}. These are ${numbers.length}${numbers.every(isFinite) ? "" : ", not all of them numbers"}.`;
    return;
  }
  ask("state", { states: [numbers] });
}
function redraw() {
  D.runs.forEach((_, r) => drawMap(r));
  if (state.chosen) drawState();
  drawSeries();
}
build();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let later = 0;
addEventListener("resize", () => { clearTimeout(later); later = setTimeout(redraw, 120); });
