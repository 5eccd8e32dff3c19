// The page around the grid: the step that is shown, and everything that follows from it.

const trace = JSON.parse(document.getElementById("trace").textContent);
const cells = new Cells(trace);
const $ = (id) => document.getElementById(id);
const grid = new Grid($("grid"), $("scroller"), $("spacer"), cells);
const kept = cells.compresses ? new Kept($("heads"), cells) : null;
const last = trace.steps.length - 1;
const number = (value) => value.toLocaleString("en");
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const SAYS = {
  absent: "not here: never computed in this layer, or evicted", aside: "parked at the entrance of this layer",
  held: "held, not read in this step", reused: "reused from the cache", computed: "computed in this step",
  revived: "revived: computed now, after earlier steps had skipped it",
};
const NAMED = { aside: "parked", held: "held, not read" };
const named = (state) => NAMED[state] || state;
let step = 0, timer = null, shown = [];

function element(parent, tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  parent.append(made);
  return made;
}

// Mixed text and elements: strings as they are, ["tag", text] as elements. Never as HTML: tokens are anyone's text.
function say(parent, ...parts) {
  parent.replaceChildren();
  for (const part of parts) typeof part === "string" ? parent.append(part) : element(parent, part[0], part[1]);
}

const quoted = (token) => ["q", visible(trace.tokens[token].text)];

function layersText(layers) {
  const runs = [];
  for (const layer of layers) {
    const run = runs[runs.length - 1];
    if (run && layer === run[1] + 1) run[1] = layer;
    else runs.push([layer, layer]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

function tile(name, figure, rest, share) {
  const box = element($("tiles"), "div", "", "tile");
  element(box, "div", name, "name");
  element(box, "div", figure, "figure");
  element(box, "div", rest, "rest");
  if (share !== undefined) element(element(box, "div", "", "meter"), "i").style.width = `${Math.min(100, 100 * share)}%`;
}

function drawHead() {
  const { stats } = trace, made = trace.tokens.length - trace.prompt;
  $("plan").textContent = trace.plan;
  const omitted = trace.omitted ? ` (${number(trace.omitted)} more left out)` : "";
  const ended = { stop: "it stopped by itself", length: "cut at the limit" }[trace.finish_reason] || "interrupted";
  $("about").textContent =
    `${trace.model} · ${trace.layers} layers · ${number(trace.prompt)} prompt tokens${omitted} · ${number(made)} new, ${ended}`;
  const share = (part, whole) => (whole ? part / whole : 0);
  tile("rows computed", percent(stats.rows_computed, stats.rows_full),
    `${number(stats.rows_computed)} of ${number(stats.rows_full)}`, share(stats.rows_computed, stats.rows_full));
  tile("of them revived", number(stats.revived_rows), `${percent(stats.revived_rows, stats.rows_computed)} of the rows`,
    share(stats.revived_rows, stats.rows_computed));
  tile("units read by decode steps", percent(stats.units_read, stats.units_full),
    `${number(stats.units_read)} of ${number(stats.units_full)}`, share(stats.units_read, stats.units_full));
  if (cells.paced) {
    tile("slow steps", number(stats.slow_steps), `of ${number(stats.slow_steps + stats.fast_steps)} decode steps`,
      share(stats.slow_steps, stats.slow_steps + stats.fast_steps));
  }
  tile("cache at the end", `${(stats.cache_bytes / 2 ** 20).toFixed(2)} MiB`,
    stats.aux_bytes ? `and at most ${(stats.aux_bytes / 2 ** 20).toFixed(2)} MiB besides` : "keys and values");
}

function drawLegend() {
  const tally = new Array(FUTURE + 1).fill(0);
  for (const state of grid.states) tally[state]++;
  $("legend").replaceChildren();
  for (let state = FUTURE - 1; state >= 0; state--) {
    const item = element($("legend"), "li", "", STATES[state]);
    item.title = SAYS[STATES[state]];
    const swatch = element(item, "i", { revived: "•", aside: "–" }[STATES[state]] || "");
    swatch.style.background = grid.palette.css[state];
    swatch.style.color = grid.palette.mark;
    item.append(named(STATES[state]));
    element(item, "span", number(tally[state]));
  }
}

function drawGenerated() {
  const produced = trace.steps[step].produced, place = $("generated");
  const slowly = cells.slowlyFed(step), text = (token) => trace.tokens[token].text;
  place.replaceChildren();
  for (let token = trace.prompt; token < produced; token++) {
    if (slowly.has(token)) element(place, "span", text(token), "slow");
    else place.append(text(token));
  }
  element(place, "span", text(produced) || "·", "new");
  element(place, "span", trace.tokens.slice(produced + 1).map((token) => token.text).join(""), "later");
}

function drawSentence() {
  const at = trace.steps[step], sums = cells.counts(step), parts = [["b", `Step ${step} of ${last}`]];
  if (at.phase === "prefill") parts.push(`, prefill: ${number(at.fed[1] - at.fed[0])} prompt tokens, then `, quoted(at.produced));
  else parts.push(at.slow === null ? ", decode: " : at.slow ? ", slow decode step: " : ", fast decode step: ", quoted(at.fed[0]), " then ", quoted(at.produced));
  parts.push(" · ", ["b", number(sums.rows)], ` rows computed (${number(sums.rowsFull)} without the plan)`);
  if (sums.revived) parts.push(", ", ["b", number(sums.revived)], " of them revived");
  if (at.phase === "decode") parts.push(" · ", ["b", number(sums.unitsRead)], ` of ${number(sums.unitsFull)} units read`);
  if (sums.aside) parts.push(" · ", ["b", number(sums.aside)], " tokens parked");
  say($("sentence"), ...parts);
}

// Rows per step, and units read where some steps are slow.
function drawBars() {
  const sums = trace.steps.map((_, i) => cells.counts(i)), { css, slow } = grid.palette;
  const [computed, revived, reused] = ["computed", "revived", "reused"].map((state) => css[STATES.indexOf(state)]);
  drawStrip($("bars"), "rows", sums.map((each) => [[each.revived, revived], [each.rows - each.revived, computed]]));
  $("pace").hidden = !cells.paced;
  if (!cells.paced) return;
  drawStrip($("reads"), "units read", sums.map((each, i) => [[each.unitsRead, trace.steps[i].slow ? slow : reused]]),
    trace.steps.map((each) => each.slow));
}

// A bar per step, of [amount, colour] parts from bottom to top; `marked` ones have a sign besides the colour. The prefill
// has far more of anything than a decode step and is cut off.
function drawStrip(canvas, what, bars, marked = []) {
  const c = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth, high = canvas.clientHeight, inset = 8;
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const totals = bars.map((parts) => parts.reduce((total, [amount]) => total + amount, 0));
  const most = Math.max(1, ...totals.slice(1));
  const apart = last ? (wide - 2 * inset) / last : wide, bar = Math.max(1, Math.min(26, apart * 0.7));
  const tall = (amount) => Math.min(1, amount / most) * (high - 16);
  c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  bars.forEach((parts, i) => {
    const x = Math.max(0, Math.min(wide - bar, inset + apart * i - bar / 2));
    c.globalAlpha = i === step ? 1 : 0.45;
    const top = high - tall(totals[i]);
    let below = 0;
    for (const [amount, colour] of parts) {
      c.fillStyle = colour;
      c.fillRect(x, high - tall(below + amount), bar, tall(below + amount) - tall(below));
      below += amount;
    }
    c.globalAlpha = 1;
    if (marked[i] && i !== step) {
      c.fillStyle = grid.palette.slow;
      c.textAlign = "center";
      c.fillText("▾", x + bar / 2, top - 2);
    }
    if (i === step) {
      c.fillStyle = grid.palette.ink;
      c.textAlign = i === 0 ? "left" : i === last ? "right" : "center";
      const label = `${number(totals[i])} ${what}`;
      c.fillText(label, i === 0 ? x : i === last ? x + bar : x + bar / 2, top - 5);
    }
  });
}

function makeText() {
  for (let token = 0; token < trace.prompt; token++) {
    const span = element($("text"), "span", trace.tokens[token].text);
    span.dataset.token = token;
    if (/^<.*>$/.test(trace.tokens[token].text)) span.className = "special";
  }
}

function drawText() {
  const depths = cells.depths(step), revived = cells.revived(step);
  const spans = $("text").children;
  for (let token = 0; token < trace.prompt; token++) {
    const key = depths[token] * 2 + revived[token];
    if (shown[token] === key) continue;
    shown[token] = key;
    spans[token].style.background = `rgba(var(--shade), ${((0.6 * depths[token]) / trace.layers).toFixed(3)})`;
    spans[token].classList.toggle("revived", revived[token] === 1);
  }
}

// One cell, or several that share a column of pixels.
function describe([layer, first, stop]) {
  const where = ["strong", stop - first > 1 ? `tokens ${number(first)}–${number(stop - 1)}` : `token ${number(first)}`];
  if (stop - first > 1) {
    const tally = {};
    for (let token = first; token < stop; token++) {
      const state = STATES[grid.states[layer * cells.tokens + token]] || "not yet there";
      tally[state] = (tally[state] || 0) + 1;
    }
    return [where, `, layer ${layer}: ${Object.entries(tally).map(([state, n]) => `${n} ${named(state)}`).join(", ")}`];
  }
  const cell = layer * cells.tokens + first, state = STATES[grid.states[cell]];
  const since = cells.first[cell] < step ? `; computed in step ${cells.first[cell]}` : "";
  return [quoted(first), " ", where, `, layer ${layer}: `, ["strong", state ? SAYS[state] : "not yet there"], since];
}

// One unit of a snapshot, or several tokens that share a column of pixels.
function describeKept({ layer, head, snapshot, first, stop }) {
  const { known } = trace.snapshots[snapshot], where = `, layer ${layer}, KV head ${head}, after ${number(known)} tokens: `;
  const end = Math.min(stop, known);
  const range = ["strong", stop - first > 1 ? `tokens ${number(first)}–${number(stop - 1)}` : `token ${number(first)}`];
  const text = visible(trace.tokens.slice(first, stop).map((token) => token.text).join(""));
  let held = 0;
  eachRun(cells.sets[trace.snapshots[snapshot].kept[layer][head]], (from, to) => {
    held += Math.max(0, Math.min(to, end) - Math.max(from, first));
  });
  const one = held ? "kept" : "not kept";
  const says = end <= first ? "not known yet" : end - first > 1 ? `${held} of ${end - first} kept` : one;
  return [["q", text.length > 60 ? `${text.slice(0, 60)}…` : text], " ", range, where, ["strong", says]];
}

function drawKept() {
  if (!kept) return;
  const count = trace.snapshots.length, sizes = trace.snapshots[count - 1].kept.flat().map((set) => cells.sizes[set]);
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const units = least < most ? `${number(least)} to ${number(most)}` : number(most);
  const rows = count > 1 ? `${count} moments from the first, on top, to the last` : "the moment when the prompt was there";
  say($("moments"), `From left to right the text; ${rows}. At the end a KV head keeps `, ["b", units], ` of ${number(kept.tokens)} tokens, those included that no budget counts: the prompt's last, and what is newer than the last eviction.`);
  kept.draw();
}

// In how many heads the token that is followed is kept.
function followKept() {
  if (!kept) return;
  kept.chosen = grid.chosen;
  kept.draw();
  const holders = grid.chosen === null ? [] : cells.holders(grid.chosen), total = trace.layers * trace.kv_heads;
  if (!holders.length) return $("followed").replaceChildren();
  const told = holders.map(([known, count]) => `${count} after ${number(known)}`);
  const shortened = told.length > 8 ? [...told.slice(0, 4), "…", ...told.slice(-3)] : told;
  say($("followed"), quoted(grid.chosen), ` token ${number(grid.chosen)}: kept in so many of ${total} KV heads: ${shortened.join(", ")} tokens`);
}

function follow(token) {
  const spans = $("text").children;
  if (grid.chosen !== null && spans[grid.chosen]) spans[grid.chosen].classList.remove("chosen");
  grid.chosen = token;
  followKept();
  if (token === null) {
    $("detail").replaceChildren();
    return grid.draw();
  }
  if (spans[token]) spans[token].classList.add("chosen");
  grid.reveal(token);
  detail();
}

// What has become of the token that is followed.
function detail() {
  if (grid.chosen === null) return;
  const depth = cells.depths(step)[grid.chosen], revivals = cells.revivals(grid.chosen);
  const told = revivals.map(([at, layers]) => `step ${at} (layers ${layersText(layers)})`).join(", ");
  say($("detail"), quoted(grid.chosen), ` token ${number(grid.chosen)}: computed in ${depth} of ${trace.layers} layers so far`,
    revivals.length ? `; revived in ${told}` : "; never revived");
}

function go(to) {
  step = Math.max(0, Math.min(last, to));
  $("slider").value = step;
  $("slider").setAttribute("aria-valuetext", `step ${step} of ${last}`);
  grid.show(step);
  drawLegend();
  drawGenerated();
  drawSentence();
  drawBars();
  drawText();
  detail();
}

// What changes with the window and the theme.
function redraw() {
  go(step);
  drawKept();
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => (step < last ? go(step + 1) : play(false)), 800) : null;
  $("play").textContent = on ? "❚❚" : "▶";
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
}

function togglePlay() {
  if (!timer && step === last) go(0);
  play(!timer);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const style = getComputedStyle(document.documentElement);
  const colour = (of) => style.getPropertyValue(`--${of}`).trim();
  const css = [...STATES, "future"].map(colour);
  const rgb = css.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  grid.palette = { css, rgb, ink: colour("ink"), soft: colour("soft"), panel: colour("panel"), mark: colour("mark"), slow: colour("slow") };
  if (kept) kept.palette = { rgb, chosen: colour("revived") };
}

function point(cell, event) {
  grid.pointed = cell;
  tip(cell && describe(cell), event);
  grid.draw();
}

// Say something beside the mouse; nothing hides it.
function tip(parts, event) {
  $("tip").hidden = !parts || !event;
  if ($("tip").hidden) return;
  say($("tip"), ...parts);
  const box = $("tip").getBoundingClientRect();
  $("tip").style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  $("tip").style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}

// Arrow keys inside the grid go from cell to cell.
function walk(key) {
  const [layer, token] = grid.pointed || [0, Math.floor(grid.scroller.scrollLeft / grid.token)];
  const to = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[key];
  const there = Math.max(0, Math.min(cells.tokens - 1, token + to[1]));
  grid.pointed = [Math.max(0, Math.min(cells.layers - 1, layer + to[0])), there, there + 1];
  grid.reveal(there);
  say($("detail"), ...describe(grid.pointed));
}

const onGrid = (event) => {
  const box = $("grid").getBoundingClientRect();
  return grid.at(event.clientX - box.left, event.clientY - box.top);
};

const describedAt = (event) => {
  const found = kept.at(event);
  return found && describeKept(found);
};

function listen() {
  $("slider").max = last;
  $("slider").addEventListener("input", (event) => go(Number(event.target.value)));
  $("back").addEventListener("click", () => go(step - 1));
  $("on").addEventListener("click", () => go(step + 1));
  $("play").addEventListener("click", togglePlay);
  $("in").addEventListener("click", () => grid.zoom(1.6));
  $("out").addEventListener("click", () => grid.zoom(1 / 1.6));
  $("fit").addEventListener("click", () => grid.zoom(0));
  for (const strip of [$("bars"), $("reads")]) {
    strip.addEventListener("click", (event) => {
      const box = strip.getBoundingClientRect();
      go(Math.round(((event.clientX - box.left - 8) / (box.width - 16)) * last));
    });
  }
  $("grid").addEventListener("mousemove", (event) => point(onGrid(event), event));
  $("grid").addEventListener("mouseleave", () => point(null));
  $("grid").addEventListener("click", (event) => follow((onGrid(event) || [0, null])[1]));
  $("heads").addEventListener("mousemove", (event) => tip(describedAt(event), event));
  $("heads").addEventListener("mouseleave", () => tip(null));
  $("heads").addEventListener("click", (event) => event.target.tagName === "CANVAS" && follow(kept.at(event).first));
  $("text").addEventListener("click", (event) => "token" in event.target.dataset && follow(Number(event.target.dataset.token)));
  $("scroller").addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    grid.zoom(Math.exp(-event.deltaY / 300), event.clientX - $("scroller").getBoundingClientRect().left);
  }, { passive: false });
  $("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    redraw();
  });
  addEventListener("resize", redraw);
  addEventListener("keydown", onKey);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key, focused = document.activeElement;
  if (key.startsWith("Arrow") && focused === $("scroller")) walk(key);
  else if (focused === $("slider") && /^(Arrow|Home|End|Page)/.test(key)) return;
  else if (key === "ArrowLeft") go(step - 1);
  else if (key === "ArrowRight") go(step + 1);
  else if (key === "Home") go(0);
  else if (key === "End") go(last);
  else if (key === " " && focused.tagName !== "BUTTON") togglePlay();
  else if (key === "+" || key === "=") grid.zoom(1.6);
  else if (key === "-") grid.zoom(1 / 1.6);
  else if (key === "0") grid.zoom(0);
  else if (key === "Escape") follow(null);
  else return;
  event.preventDefault();
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
drawHead();
makeText();
listen();
$("keeping").hidden = !kept;
drawKept();
go(Number(location.hash.slice(1)) || 0); // trace.html#3 opens at step 3
