// The live panel of `%gpulog panel`. This first part is the widget's module, and so part of its state, which
// some front ends store in the notebook: it is short, and has the rest sent in messages, which none stores.
const pieces = {}, early = [];
let asked, panel, begun;
const ready = new Promise((resolve) => { begun = resolve; });

/** A whole message; nothing while pieces of it are missing. */
function whole(message) {
  if (message.id === undefined) return message;
  const found = pieces[message.id] ??= [];
  found[message.at] = message.text;
  if (Object.keys(found).length < message.of) return undefined;
  delete pieces[message.id];
  return JSON.parse(found.join(""));
}

async function take(model, message) {
  if (message.code === undefined) {
    if (panel) panel.take(message); else early.push(message);
  } else if (!asked) {
    asked = URL.createObjectURL(new Blob([message.code], { type: "text/javascript" }));
    panel = (await import(asked)).start(model);
    early.splice(0).forEach(panel.take);
    begun(panel);
  }
}

export default {
  initialize({ model }) {
    model.on("msg:custom", (message) => {
      const found = whole(message);
      if (found) take(model, found);
    });
    setTimeout(() => { if (!asked) model.send({ ask: "code" }); }, 300);
  },
  render({ el, signal }) {
    el.textContent = "The memory panel is live while its kernel runs: %gpulog panel";
    ready.then((panel) => panel.view(el, signal));
  },
};
//==== what is sent in messages ====
const MB = 2 ** 20, MOST = 400;  // cells that are drawn
const BLUE = "#4c78a8", RED = "#e45756", AMBER = "#e4a11b";
const STYLE = `
.gpulog { container-type: inline-size; font-size: 12.5px; line-height: 1.45; max-width: 900px; padding: 2px 6px 4px;
  position: relative; font-variant-numeric: tabular-nums; }
.gpulog button { all: unset; box-sizing: border-box; cursor: pointer; }
.gpulog button:focus-visible { outline: 2px solid ${BLUE}; outline-offset: 1px; }
.gpulog-alarm { border-left: 3px solid ${RED}; padding: 1px 9px; margin: 0 0 6px; }
.gpulog-alarm b { color: ${RED}; }
.gpulog-bars { display: grid; grid-template-columns: auto minmax(90px, 1fr) auto; gap: 3px 10px; align-items: center; }
.gpulog-words span { white-space: nowrap; }
.gpulog-words span + span::before { content: "· "; opacity: .5; }
.gpulog-words span + span { margin-left: .35em; }
.gpulog-bar { background: #8883; border-radius: 3px; height: 10px; overflow: hidden; position: relative; }
.gpulog-bar i { position: absolute; top: 0; bottom: 0; transition: width .3s, left .3s; }
.gpulog-chart { margin-top: 8px; position: relative; }
.gpulog-lane { border-bottom: 1px solid #8886; height: 46px; margin-bottom: 5px; position: relative; }
.gpulog-lane svg { display: block; height: 100%; width: 100%; }
.gpulog-lane span { font-size: 11px; left: 3px; line-height: 1; opacity: .75; pointer-events: none; position: absolute; top: 0; }
.gpulog .gpulog-band { border-left: 1px solid #8884; bottom: 5px; position: absolute; top: 0; }
.gpulog button.gpulog-band:hover, .gpulog button.gpulog-band:focus-visible { background: #8883; }
.gpulog button.gpulog-band[aria-expanded=true] { background: ${BLUE}33; }
.gpulog button.gpulog-failed { background: ${RED}26; }
.gpulog .gpulog-running { background: ${AMBER}26; border-left: 1px solid ${AMBER}; animation: gpulog-runs 2s infinite alternate; }
@keyframes gpulog-runs { to { opacity: .45; } }
.gpulog-most { font-size: 11px; height: 1.5em; position: relative; }
.gpulog-most span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.gpulog-most span::before { color: ${RED}; content: "▲ "; font-size: 8px; vertical-align: 2px; }
.gpulog-hint { font-size: 11.5px; min-height: 1.45em; opacity: .7; }
.gpulog-report { border-top: 1px solid #8884; margin-top: 4px; overflow-x: auto; padding: 5px 24px 2px 0; position: relative; }
.gpulog-report button { opacity: .7; padding: 0 6px; position: absolute; right: 0; top: 3px; }
.gpulog-strip { background: var(--jp-layout-color1, #fff); border: 1px solid var(--jp-border-color2, #bbb); border-radius: 6px;
  bottom: 10px; box-shadow: 0 1px 5px #0003; color: var(--jp-ui-font-color1, #222); display: flex; font: 12px/1.4 var(--jp-ui-font-family, sans-serif);
  font-variant-numeric: tabular-nums; gap: 8px; max-width: calc(100% - 60px); padding: 3px 8px; position: absolute; right: 24px; z-index: 20; }
.gpulog-strip[hidden], .gpulog [hidden] { display: none; }
.gpulog-strip button { all: unset; cursor: pointer; display: flex; flex-wrap: wrap; gap: 2px 14px; }
.gpulog-strip button:focus-visible { outline: 2px solid ${BLUE}; outline-offset: 2px; }
.gpulog-strip button > span { align-items: center; display: flex; gap: 5px; white-space: nowrap; }
.gpulog-strip .gpulog-bar { height: 8px; width: 60px; }
.gpulog-found { outline: 2px solid ${BLUE}; outline-offset: -2px; }
@container (max-width: 560px) {
  .gpulog-bars { grid-template-columns: auto 1fr; }
  .gpulog-words { grid-column: 1 / 3; margin: -2px 0 4px; }
}
@media (prefers-reduced-motion: reduce) {
  .gpulog-bar i { transition: none; }
  .gpulog-running { animation: none; }
}`;

// -- words ----------------------------------------------------------------------------------------------------

/** A size as the reports write it: "123 MB", "2.4 GB". */
function size(bytes) {
  const mb = Math.round(bytes / MB);
  if (Math.abs(mb) < 1000) return `${mb} MB`.replace("-", "\u2212");
  let value = bytes / MB / 1024, unit = 0;
  for (; Math.abs(value) >= 999.95 && unit < 2; unit++) value /= 1024;
  return `${value.toFixed(1)} ${["GB", "TB", "PB"][unit]}`.replace("-", "\u2212");
}

/** A time as the reports write it: "0.30 s", "12.4 s", "2 min 5 s". */
function time(seconds) {
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const round = (bytes) => size(bytes).replace(".0 ", " ");
/** What is in use: of RAM by this process, of a device by all. */
const used = (memory) => (memory.name === "RAM" ? memory.after : memory.all ?? memory.after) ?? 0;
const needed = (one) => (one.before === null ? 0 : Math.max(one.highest, one.before, one.after) - one.before);
const reduced = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** An element with a class and text; text from elsewhere is never markup. */
function make(tag, kind = "", text = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

const TAGS = new Set(("b i code pre div span details summary table caption thead tbody tfoot tr th td br small p ul ol li "
  + "svg g path polygon polyline rect line circle text tspan title").split(" "));

/** The nodes of a report, which our kernel wrote, without anything that could run or fetch. */
function harmless(html) {
  const body = new DOMParser().parseFromString(html, "text/html").body;
  for (const one of body.querySelectorAll("*")) {
    if (!TAGS.has(one.localName)) one.remove();
    for (const { name, value } of [...one.attributes]) {
      if (/^on|href|src|action|^id$/i.test(name) || /url\(|javascript:/i.test(value)) one.removeAttribute(name);
    }
  }
  return [...body.childNodes];
}

// -- one panel ------------------------------------------------------------------------------------------------

export function start(model) {
  const memories = new Map();  // by number: name, total, budget, highest so far, what is used and left
  const cells = new Map();  // by place in the history
  const views = new Set();
  let running = null, stopped = false, mark = "", total = 0, said = "", drawing = 0, picturing = 0, notebook = null;

  const inJupyter = () => document.querySelector(".jp-NotebookPanel") !== null;
  function ask(question) {
    try { model.send(question); } catch { gone(); }  // no kernel is there
  }

  // -- what the kernel says

  function figures(rows) {
    return rows.map(([memory, before, highest, after, atLeast, most, mostAtLeast, all, left, total, budget, name]) => {
      if (name) memories.set(memory, { name, total, budget, most, mostAtLeast, after, all, left });
      return { memory, before, highest, after, atLeast };
    });
  }

  function take(message) {
    stopped = false;
    for (const row of message.cells ?? []) {
      const cell = { ...row, figures: figures(row.figures), points: cells.get(row.at)?.points };
      if (message.ended) ended(cell);
      cells.set(cell.at, cell);
    }
    if (message.running) {
      const points = running?.points ?? [];  // as far as they were seen: the kernel keeps none for us
      running = { ...message.running, figures: figures(message.running.figures), points };
      points.push(running);
      if (points.length > 200) points.splice(1, 1);
    }
    if (message.stopped) { stopped = true; running = null; }
    total = message.total ?? total;
    if (message.report !== undefined) views.forEach((one) => one.reported(message));
    if (message.mark && !mark) {
      mark = message.mark;
      takePlaces();
      new MutationObserver(takePlaces).observe(document.body, { childList: true, subtree: true });
      if (inJupyter()) ask({ ask: "picture", alone: true });
    }
    if (cells.size > MOST + 20) forget();
    draw();
  }

  function ended(cell) {
    if (running?.name === cell.name) cell.points = running.points;
    running = null;
    total = Math.max(total, cell.at + 1);
    if (!cell.ours) said = inWords(cell);
    clearTimeout(picturing);  // the notebook's picture follows when the cells have rested
    picturing = setTimeout(() => ask({ ask: "picture", alone: inJupyter() }), 2000);
  }

  /** Of very many cells the newest are drawn, and those that needed most. */
  function forget() {
    const most = new Set(ranked().slice(0, 100).map((cell) => cell.at));
    for (const at of [...cells.keys()].sort((a, b) => a - b)) {
      if (cells.size > MOST && !most.has(at)) cells.delete(at);
    }
  }

  function gone() { stopped = true; running = null; draw(); }

  /** The cells that needed most: on devices first, as `%gpulog summary` has it. */
  function ranked() {
    const need = (cell) => {
      const sizes = cell.figures.map((one) => [one.memory, needed(one)]);
      const device = Math.max(0, ...sizes.filter(([memory]) => memory).map(([, bytes]) => bytes));
      return [device >= MB ? device : 0, sizes.find(([memory]) => !memory)?.[1] ?? 0];
    };
    return [...cells.values()].filter((cell) => !cell.ours).map((cell) => [cell, need(cell)])
      .filter(([, [device, ram]]) => device || ram >= MB)
      .sort(([, a], [, b]) => b[0] - a[0] || b[1] - a[1]).map(([cell]) => cell);
  }

  function inWords(cell) {
    const moved = cell.figures.filter((one) => one.before !== null).map((one) => {
      const change = one.after - one.before, least = one.atLeast ? "at least " : "";
      const sign = Math.round(change / MB) > 0 ? "+" : "";
      return `${memories.get(one.memory)?.name} ${sign}${size(change)}, needed ${least}${size(needed(one))}`;
    });
    return [cell.name, cell.outcome, time(cell.time_s), ...moved].filter(Boolean).join(" · ");
  }

  /** The cells side by side, those within others left out: half of the width is by time, half for all alike. */
  function bands() {
    const found = [];
    let last = -Infinity;
    const all = [...cells.values()].sort((a, b) => a.began_s - b.began_s || b.time_s - a.time_s);
    for (const cell of all) {
      const end = cell.began_s + cell.time_s;
      if (cell.began_s < last && end <= last) continue;
      last = end;
      found.push({ cell });
    }
    if (running) found.push({ cell: running, runs: true });
    const seconds = found.reduce((sum, { cell }) => sum + cell.time_s, 0) || 1;
    let left = 0;
    for (const band of found) {
      band.left = left;
      band.width = 50 * band.cell.time_s / seconds + 50 / found.length;
      left += band.width;
    }
    return found;
  }

  // -- in whose place the views stand, and the strip that stays in sight

  /** The picture's place in JupyterLab, also in a new view of the output or after the page was loaded anew. */
  function takePlaces() {
    for (const place of document.getElementsByClassName(mark)) {
      if (place.querySelector(".gpulog")) continue;
      const spare = [...views].find((one) => !one.root.isConnected);
      const held = spare?.focused;
      place.replaceChildren((spare ?? newView()).root);
      held?.focus({ preventScroll: true });
    }
  }

  const inSight = new IntersectionObserver((changes) => {
    for (const change of changes) change.target.inSight = change.isIntersecting;
    drawStrip();
  });
  const strip = make("div", "gpulog-strip"), back = make("button"), dismiss = make("button", "", "×");
  strip.append(back, dismiss);
  strip.hidden = true;
  strip.dataset.lmSuppressShortcuts = "true";
  back.setAttribute("aria-label", "Show the memory panel");
  dismiss.setAttribute("aria-label", "Hide this bar");
  dismiss.onclick = () => { strip.dismissed = true; drawStrip(); };
  back.onclick = () => {
    const shown = [...views].find((one) => notebook?.contains(one.root));
    shown?.root.scrollIntoView({ block: "nearest", behavior: reduced() ? "auto" : "smooth" });
  };

  function drawStrip() {
    for (const { root } of views) notebook = root.closest(".jp-NotebookPanel") ?? notebook;
    const seen = [...views].some(({ root }) => root.isConnected && root.inSight);
    if (seen) strip.dismissed = false;
    strip.hidden = seen || strip.dismissed || !notebook || !memories.size || !views.size;
    if (strip.hidden) return;
    if (strip.parentNode !== notebook) notebook.append(strip);
    back.replaceChildren(...[...memories.values()].map((one) => {
      const item = make("span", "", one.name);
      item.append(bar(one), `${size(used(one))}${one.total ? ` of ${round(one.total)}` : ""}`);
      return item;
    }));
  }

  function bar(memory) {
    const drawn = make("div", "gpulog-bar"), { total, budget, most: highest, left } = memory;
    const own = memory.after ?? 0, all = Math.max(own, memory.all ?? 0);
    const whole = total ?? Math.max(highest, all, 1);
    const part = (from, to, colour) => {
      const one = make("i"), left = Math.min(100, 100 * from / whole);
      one.style.cssText = `left:${left}%;width:${Math.min(100 - left, 100 * (to - from) / whole)}%;background:${colour}`;
      drawn.append(one);
    };
    const line = (at, look) => {
      const one = make("i");
      one.style.cssText = `left:calc(${Math.min(100, 100 * at / whole)}% - 2px);border-left:2px ${look}`;
      drawn.append(one);
    };
    part(0, own, left !== null && left < total / 20 ? RED : BLUE);
    part(own, all, "#9e9e9e99");
    if (highest > own) line(highest, "solid currentColor");
    if (budget) line(budget, `dashed ${AMBER}`);
    return drawn;
  }

  // -- drawing

  function draw() {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      const found = bands();
      views.forEach((one) => one.draw(found));
      drawStrip();
    });
  }

  function newView() {
    const root = make("div", "gpulog"), alarm = make("div", "gpulog-alarm"), bars = make("div", "gpulog-bars");
    const chart = make("div", "gpulog-chart"), most = make("div", "gpulog-most"), hint = make("div", "gpulog-hint");
    const line = make("div", "gpulog-line"), report = make("div", "gpulog-report"), lanes = make("div");
    const buttons = new Map();  // the bands, by cell
    let open = null, current = null;
    root.setAttribute("role", "region");
    root.setAttribute("aria-label", "Memory panel");
    root.dataset.lmSuppressShortcuts = "true";  // JupyterLab leaves the keys to us
    line.setAttribute("aria-live", "polite");
    chart.setAttribute("role", "group");
    chart.setAttribute("aria-label", "Cells; arrow keys move, Enter shows the report");
    most.setAttribute("aria-hidden", "true");
    chart.append(lanes);
    report.hidden = alarm.hidden = true;
    root.append(make("style", "", STYLE), alarm, bars, chart, most, line, hint, report);

    chart.onkeydown = (event) => {
      const order = [...buttons.values()], at = order.indexOf(event.target);
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: order.length - 1 }[event.key];
      if (event.key === "Escape") show(null);
      if (to === undefined || !order[to]) return;
      event.preventDefault();
      order[to].focus();
    };
    const hinting = (event) => {
      const cell = event.type === "pointerout" || event.type === "focusout" ? null : cells.get(event.target.at);
      hint.textContent = cell ? inWords(cell) : caption();
    };
    for (const kind of ["pointerover", "pointerout", "focusin", "focusout"]) chart.addEventListener(kind, hinting);
    chart.addEventListener("focusin", ({ target }) => { if (target.at !== undefined) rove(target.at); });
    root.addEventListener("focusin", ({ target }) => { view.focused = target; });
    root.addEventListener("focusout", () => { if (root.isConnected) view.focused = null; });

    /** The one band that Tab reaches. */
    function rove(at) {
      current = at;
      buttons.forEach((button, one) => { button.tabIndex = one === at ? 0 : -1; });
    }

    function caption() {
      const kept = cells.size;
      if (!kept) return "Run a cell: what it needs appears here.";
      const of = total > kept ? `${kept} of ${total.toLocaleString("en")} cells` : `${kept} cell${kept > 1 ? "s" : ""}`;
      const gpu = memories.size > 1 ? " Used: of RAM by this process, of a GPU by all processes." : "";
      return `${of}, wider where they took longer.${gpu}`;
    }

    function show(cell) {
      open = cell && cell.at !== open ? cell.at : null;
      report.hidden = open === null;
      report.replaceChildren();
      if (open !== null) {
        ask({ ask: "report", at: open });
        scrollTo(cell, root);
      }
      draw();
    }

    function reported({ report: at, html }) {
      if (at !== open) return;
      const close = make("button", "", "×");
      close.setAttribute("aria-label", "Close the report");
      close.onclick = () => { show(null); buttons.get(at)?.focus(); };
      report.replaceChildren(...harmless(html), close);
    }

    function drawBars() {
      bars.replaceChildren(...[...memories.values()].flatMap((one) => {
        const { name, left, total, budget, most: highest, mostAtLeast: atLeast } = one, words = make("div", "gpulog-words");
        const items = [`${size(used(one))}${total ? ` of ${round(total)}` : ""}`, left !== null && `${size(left)} left`,
          highest && `highest ${atLeast ? "at least " : ""}${size(highest)}`, budget && `budget ${round(budget)}`];
        words.append(...items.filter(Boolean).map((item) => make("span", "", item)));
        const drawn = bar(one);
        drawn.setAttribute("aria-hidden", "true");
        return [make("b", "", name), drawn, words];
      }));
    }

    function drawLanes(found) {
      lanes.replaceChildren(...[...memories].map(([memory, one]) => {
        const lane = make("div", "gpulog-lane"), near = [one.total, one.budget].filter((at) => at && at < 2.5 * one.most);
        const top = 1.3 * Math.max(MB, one.most, ...near), y = (bytes) => (100 - 100 * bytes / top).toFixed(1);
        let drawn = "", run = [];
        const flush = () => {
          if (run.length) drawn += `<polygon fill="${BLUE}" fill-opacity=".65" points="${run.join(" ")} ${run.at(-1).split(",")[0]},100 ${run[0].split(",")[0]},100"/>`;
          run = [];
        };
        for (const { cell, left, width } of found) {
          const use = cell.figures.find((figure) => figure.memory === memory && figure.before !== null);
          if (!use) { flush(); continue; }
          const inside = (cell.points ?? []).flatMap((point) => {
            const then = point.figures.find((figure) => figure.memory === memory && figure.before !== null);
            const part = Math.min(1, point.time_s / (cell.time_s || 1));
            return then ? [`${(left + width * part).toFixed(2)},${y(then.after)}`] : [];
          });
          run.push(`${left.toFixed(2)},${y(use.before)}`, ...inside, `${(left + width).toFixed(2)},${y(use.after)}`);
          if (use.highest - Math.max(use.before, use.after) > top * 0.03) {
            drawn += `<path stroke="${RED}" d="M${left.toFixed(2)} ${y(use.highest)}h${width.toFixed(2)}"/>`;
          }
        }
        flush();
        for (const at of near) drawn += `<path stroke="${at === one.budget ? AMBER : "#888"}" stroke-dasharray="5 3" d="M0 ${y(at)}H100"/>`;
        lane.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">${drawn}</svg>`;  // figures alone
        lane.querySelectorAll("path").forEach((path) => path.setAttribute("vector-effect", "non-scaling-stroke"));
        if (memories.size > 1) lane.append(make("span", "", one.name));
        return lane;
      }));
    }

    function drawBands(found) {
      chart.querySelector(".gpulog-running")?.remove();
      const old = new Map(buttons);
      buttons.clear();
      for (const { cell, left, width, runs } of found) {
        const button = old.get(cell.at) ?? make(runs ? "div" : "button");
        old.delete(cell.at);
        button.className = `gpulog-band${runs ? " gpulog-running" : cell.outcome ? " gpulog-failed" : ""}`;
        button.style.left = `${left}%`;
        button.style.width = `${width}%`;
        if (!runs) {
          button.at = cell.at;
          button.onclick = () => show(cell);
          button.setAttribute("aria-label", inWords(cell));
          button.setAttribute("aria-expanded", String(cell.at === open));
          buttons.set(cell.at, button);
        }
        if (button.parentNode !== chart) chart.append(button);
      }
      old.forEach((button) => button.remove());
      rove(buttons.has(current) ? current : [...buttons.keys()].at(-1));
    }

    /** The cells that needed most, with their number and what that was, as far as there is room. */
    function drawMost(found) {
      const width = most.clientWidth || 600, taken = [];
      most.replaceChildren();
      for (const cell of ranked().slice(0, 5)) {
        const band = found.find((one) => one.cell === cell), use = cell.figures.filter((one) => one.before !== null);
        if (!band) continue;
        const [by] = use.sort((a, b) => (b.memory && needed(b) >= MB ? needed(b) : 0) - (a.memory && needed(a) >= MB ? needed(a) : 0));
        const text = `${cell.count === null ? cell.name : `[${cell.count}]`} ${by.atLeast ? "≥ " : ""}${size(needed(by))}`;
        const half = 4 + 3.6 * text.length, at = (band.left + band.width / 2) / 100 * width;
        const middle = Math.max(half, Math.min(width - half, at));
        if (taken.some((other) => Math.abs(other.middle - middle) < other.half + half)) continue;
        taken.push({ middle, half });
        const label = make("span", "", text);
        label.style.left = `${middle}px`;
        most.append(label);
      }
    }

    function drawWords(found) {
      const last = found.filter(({ cell, runs }) => !runs && !cell.ours).at(-1)?.cell;
      alarm.hidden = !last?.advice;
      if (last?.advice) {
        alarm.replaceChildren(make("b", "", "Out of memory"), ` in ${last.name}. ${last.advice.replaceAll("`", "")}`);
      }
      const words = stopped ? "Not live: the reports were stopped, or the kernel ended." : said;
      if (line.textContent !== words) line.textContent = words;
      if (!chart.querySelector(":hover") && !chart.contains(document.activeElement)) hint.textContent = caption();
      if (running) hint.textContent = `${running.name} runs: ${time(running.time_s)}`;
    }

    const view = {
      root, reported, focused: null,
      draw(found) {
        drawBars();
        chart.hidden = !found.length;
        drawLanes(found);
        drawBands(found);
        drawMost(found);
        drawWords(found);
      },
    };
    views.add(view);
    inSight.observe(root);
    draw();
    return view;
  }

  /** Show the cell where the front end can: JupyterLab has its number beside it. */
  function scrollTo(cell, root) {
    const where = root.closest(".jp-NotebookPanel") ?? notebook, prompt = `[${cell.count}]:`;
    const prompts = cell.count === null ? [] : [...(where?.querySelectorAll(".jp-CodeCell .jp-InputPrompt") ?? [])];
    const found = prompts.find((one) => one.textContent.trim() === prompt)?.closest(".jp-Cell");
    if (!found) return;
    found.scrollIntoView({ block: "nearest", behavior: reduced() ? "auto" : "smooth" });
    found.classList.add("gpulog-found");
    setTimeout(() => found.classList.remove("gpulog-found"), 1500);
  }

  model.on("comm:close", gone);
  model.on("comm_live_update", gone);
  setTimeout(() => { if (!total && !mark) ask({ ask: "history" }); }, 300);

  return {
    take,
    view(el, signal) {
      const view = newView();
      el.replaceChildren(view.root);
      signal?.addEventListener("abort", () => setTimeout(() => {
        if (!view.root.isConnected) { views.delete(view); inSight.unobserve(view.root); drawStrip(); }
      }, 1000));
    },
  };
}
