// The widget's module: it has the rest of the panel sent in messages.
const pieces = {}, early = [];
let code, panel, begun;
const ready = new Promise((resolve) => { begun = resolve; });

function joined(message) {
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
  } else if (!code) {
    code = URL.createObjectURL(new Blob([message.code], { type: "text/javascript" }));
    panel = (await import(code)).start(model);
    early.forEach(panel.take);
    begun(panel);
  }
}

export default {
  initialize({ model }) {
    model.on("msg:custom", (piece) => {
      const message = joined(piece);
      if (message) take(model, message);
    });
    setTimeout(() => {
      try { if (!code) model.send({ ask: "code" }); } catch { /* no kernel */ }
    }, 300);
  },
  render({ el, signal }) {
    el.textContent = "The memory panel is live while its kernel runs: %gpulog panel";
    ready.then((panel) => panel.view(el, signal));
  },
};
//==== What is sent in messages. The part above is in the widget's state, which some front ends store in the
// notebook: so it is short.
const MB = 2 ** 20, MOST = 400;  // cells that are drawn
const BLUE = "#4c78a8", RED = "#e45756", AMBER = "#e4a11b";
const STYLE = `
.gl, .gl-strip { font-size: 12.5px; font-variant-numeric: tabular-nums; line-height: 1.45; }
.gl { container-type: inline-size; max-width: 900px; padding: 2px 6px 4px; }
.gl button, .gl-strip button { all: unset; cursor: pointer; }
.gl button:focus-visible, .gl-strip button:focus-visible { outline: 2px solid ${BLUE}; outline-offset: 1px; }
.gl [hidden], .gl-strip[hidden] { display: none; }
.gl-alarm { border-left: 3px solid ${RED}; margin-bottom: 6px; padding: 1px 9px; }
.gl-alarm b { color: ${RED}; }
.gl-bars { align-items: center; display: grid; gap: 3px 10px; grid-template-columns: auto minmax(90px, 1fr) auto; }
.gl-words span { white-space: nowrap; }
.gl-words span:not(:last-child)::after { content: " ·"; opacity: .5; }
.gl-bar { background: #8883; border-radius: 3px; height: 10px; overflow: hidden; position: relative; }
.gl-bar i { bottom: 0; position: absolute; top: 0; transition: width .3s, left .3s; }
.gl-chart { margin-top: 8px; position: relative; }
.gl-lane { border-bottom: 1px solid #8886; height: 46px; margin-bottom: 5px; position: relative; }
.gl-lane svg { display: block; height: 100%; width: 100%; }
.gl-lane path { stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.gl-lane span { font-size: 11px; left: 4px; line-height: 1; opacity: .75; position: absolute; top: 0; }
.gl .gl-band { border-left: 1px solid #8882; bottom: 5px; position: absolute; top: 0; }
.gl .gl-band:hover, .gl .gl-band:focus-visible { background: #8883; }
.gl .gl-band[aria-expanded=true] { background: ${BLUE}33; }
.gl .gl-failed { background: ${RED}26; }
.gl .gl-runs { animation: gl-runs 2s infinite alternate; background: ${AMBER}33; }
@keyframes gl-runs { to { opacity: .45; } }
.gl-most { font-size: 11px; height: 1.5em; position: relative; }
.gl-most span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.gl-most span::before { color: ${RED}; content: "▲ "; font-size: 8px; vertical-align: 2px; }
.gl-hint { font-size: 11.5px; min-height: 1.45em; opacity: .7; }
.gl-report { border-top: 1px solid #8884; margin-top: 4px; overflow-x: auto; padding: 5px 24px 2px 0; position: relative; }
.gl .gl-close { opacity: .7; padding: 0 6px; position: absolute; right: 0; top: 3px; }
.gl-strip { background: var(--jp-layout-color1, #fff); border: 1px solid var(--jp-border-color2, #bbb); border-radius: 6px;
  bottom: 10px; box-shadow: 0 1px 5px #0003; color: var(--jp-ui-font-color1, #222); display: flex;
  font-family: var(--jp-ui-font-family); gap: 8px; max-width: calc(100% - 60px); padding: 3px 8px; position: absolute;
  right: 24px; z-index: 20; }
.gl-strip button { display: flex; flex-wrap: wrap; gap: 2px 14px; }
.gl-strip button > span { align-items: center; display: flex; gap: 5px; white-space: nowrap; }
.gl-strip .gl-bar { height: 8px; width: 60px; }
.gl-found { outline: 2px solid ${BLUE}; outline-offset: -2px; }
@container (max-width: 560px) {
  .gl-bars { grid-template-columns: auto 1fr; }
  .gl-words { grid-column: 1 / 3; margin: -2px 0 4px; }
}
@media (prefers-reduced-motion: reduce) { .gl-bar i { transition: none; } .gl .gl-runs { animation: none; } }`;

// -- words and elements

/** A size as the reports write it: "123 MB", "2.4 GB". */
function size(bytes) {
  const mb = Math.round(bytes / MB), gb = bytes / MB / 1024;
  const words = Math.abs(mb) < 1000 ? `${mb} MB` : Math.abs(gb) < 999.95 ? `${gb.toFixed(1)} GB` : `${(gb / 1024).toFixed(1)} TB`;
  return words.replace("-", "\u2212");
}

/** A time as the reports write it: "0.30 s", "12.4 s", "2 min 5 s". */
function time(seconds) {
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const round = (bytes) => size(bytes).replace(".0 ", " ");
const needed = (use) => (use.before === null ? 0 : Math.max(use.highest, use.before, use.after) - use.before);
/** What is in use: of RAM by this process, of a device by all. */
const used = (memory) => (memory.name === "RAM" ? memory.after : memory.all ?? memory.after) ?? 0;

/** An element with a class and text; text from elsewhere is never markup. */
function make(tag, kind = "", text = "", label = "") {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  if (label) made.setAttribute("aria-label", label);
  return made;
}

const TAGS = new Set(("b i code pre div span details summary table caption thead tbody tfoot tr th td br small p ul ol "
  + "li svg g path polygon polyline rect line circle text tspan title").split(" "));

/** The nodes of a report, which our kernel wrote, without anything that could run or fetch. */
function harmless(html) {
  const body = new DOMParser().parseFromString(html, "text/html").body;
  for (const one of body.querySelectorAll("*")) {
    if (!TAGS.has(one.localName)) one.remove();
    for (const { name, value } of [...one.attributes]) {
      if (/^on|href|src|action|^id$/i.test(name) || /url\(|script:/i.test(value)) one.removeAttribute(name);
    }
  }
  return [...body.childNodes];
}

// -- one panel

export function start(model) {
  const memories = new Map();  // by number: name, total, budget, highest of the session, what is used and left
  const cells = new Map();  // by place in the history
  const views = new Set();
  let running = null, over = null, stopped = false, mark = "", total = 0, said = "", notebook = null;
  let drawing = 0, picturing = 0, ticking = 0;  // what the browser calls later

  function ask(question) {
    try { model.send(question); } catch { gone(); }  // no kernel is there
  }
  function askForPicture() {
    ask({ ask: "picture", alone: document.querySelector(".jp-NotebookPanel") !== null });
  }
  function gone() { take({ stopped: true }); }

  // -- what the kernel says

  function figures(rows) {
    return rows.map(([memory, name, total, budget, before, highest, after, atLeast, all, left, most, mostAtLeast]) => {
      memories.set(memory, { name, total, budget, most, mostAtLeast, after, all, left });
      return { memory, before, highest, after, atLeast };
    });
  }

  function take(message) {
    for (const row of message.cells ?? []) {
      const cell = { ...row, figures: figures(row.figures), points: cells.get(row.at)?.points };
      cells.set(cell.at, cell);
      if (message.ended) ended(cell);
    }
    if (message.running && !isOver(message.running)) {
      const points = running?.points ?? [];  // as far as they were seen: the kernel keeps none for us
      const began = performance.now() - 1000 * message.running.time_s;
      running = { ...message.running, figures: figures(message.running.figures), points, began };
      ticking ||= setInterval(draw, 1000);  // the kernel is silent while no figure changes
      points.push({ time_s: running.time_s, figures: running.figures });
      if (points.length > 200) points.splice(1, 1);
    }
    stopped = Boolean(message.stopped);
    if (stopped) running = null;
    total = message.total ?? total;
    if (message.report !== undefined) views.forEach((one) => one.reported(message));
    if (message.mark && !mark) {
      mark = message.mark;
      takePlaces();
      new MutationObserver(takePlaces).observe(document.body, { childList: true, subtree: true });
      askForPicture();
    }
    draw();
  }

  /** Whether the message of a running cell came behind that of its end. */
  const isOver = ({ name, time_s }) => over?.name === name && time_s <= over.time_s + 0.2;

  function ended(cell) {
    if (running?.name === cell.name) cell.points = running.points;
    running = null;
    over = cell;
    total = Math.max(total, cell.at + 1);
    if (!cell.ours) said = inWords(cell);
    clearTimeout(picturing);  // the notebook's picture follows when the cells have rested
    picturing = setTimeout(askForPicture, 2000);
    if (cells.size <= MOST + 20) return;
    const most = new Set(ranked().slice(0, 100));  // of very many, these and the newest are drawn
    for (const [at, one] of cells) if (cells.size > MOST && !most.has(one)) cells.delete(at);
  }

  /** The memory by which a cell is ranked, a device before RAM, as in `%gpulog summary`; none below 1 MB. */
  function neediest(cell) {
    const uses = cell.figures.filter((use) => needed(use) >= MB).sort((a, b) => needed(b) - needed(a));
    return uses.find((use) => use.memory) ?? uses[0];
  }

  function ranked() {
    const found = [...cells.values()].filter((cell) => !cell.ours && neediest(cell));
    const key = (cell) => [Math.min(1, neediest(cell).memory), needed(neediest(cell))];
    return found.sort((a, b) => key(b)[0] - key(a)[0] || key(b)[1] - key(a)[1]);
  }

  function inWords(cell) {
    const moved = cell.figures.filter((use) => use.before !== null).map((use) => {
      const change = use.after - use.before, least = use.atLeast ? "at least " : "", { name } = memories.get(use.memory);
      if (Math.abs(change) < MB / 2 && needed(use) < MB / 2) return `${name} ${size(use.after)}`;
      const consumed = Math.round(change / MB) ? `${change > 0 ? "+" : ""}${size(change)}, ` : "";
      return `${name} ${consumed}needed ${least}${size(needed(use))}`;
    });
    return [cell.name, cell.outcome, time(cell.time_s), ...moved].filter(Boolean).join(" · ");
  }

  /** The cells side by side, those within others left out: half of the width by time, half for all alike. */
  function bands() {
    const found = [];
    let last = -Infinity, left = 0;
    for (const cell of [...cells.values()].sort((a, b) => a.began_s - b.began_s || b.time_s - a.time_s)) {
      const end = cell.began_s + cell.time_s;
      if (cell.began_s >= last || end > last) found.push({ cell });
      last = Math.max(last, end);
    }
    if (running) {
      running.time_s = (performance.now() - running.began) / 1000;
      found.push({ cell: running, runs: true });
    }
    const seconds = found.reduce((sum, { cell }) => sum + cell.time_s, 0) || 1;
    for (const band of found) {
      band.left = left;
      band.width = 50 * band.cell.time_s / seconds + 50 / found.length;
      left += band.width;
    }
    return found;
  }

  // -- where the views stand, and the strip that stays in sight

  /** Take the place of the pictures in JupyterLab, also in a new view of the output or on a page loaded anew. */
  function takePlaces() {
    for (const place of document.getElementsByClassName(mark)) {
      if (place.querySelector(".gl")) continue;
      const spare = [...views].find((one) => !one.root.isConnected), held = spare?.focused;
      place.replaceChildren((spare ?? newView()).root);
      if (document.activeElement === document.body) held?.focus({ preventScroll: true });  // lost by the move
    }
  }

  const inSight = new IntersectionObserver((changes) => {
    for (const change of changes) change.target.inSight = change.isIntersecting;
    drawStrip();
  });
  const strip = make("div", "gl-strip"), dismiss = make("button", "", "×", "Hide this bar");
  const back = make("button", "", "", "Show the memory panel");
  strip.append(back, dismiss);
  strip.hidden = true;
  strip.dataset.lmSuppressShortcuts = "true";
  dismiss.onclick = () => { strip.dismissed = true; drawStrip(); };
  back.onclick = () => [...views].find((one) => notebook.contains(one.root))?.root.scrollIntoView({ block: "center" });

  function drawStrip() {
    for (const { root } of views) notebook = root.closest(".jp-NotebookPanel") ?? notebook;
    const there = [...views].filter(({ root }) => root.isConnected), seen = there.some(({ root }) => root.inSight);
    if (seen) strip.dismissed = false;
    // Without a kernel a panel that is not there is gone for good; else it may only be far away.
    const none = !views.size || !memories.size || (stopped && !there.length);
    strip.hidden = seen || strip.dismissed || !notebook || none;
    if (strip.hidden) return;
    if (strip.parentNode !== notebook) notebook.append(strip);
    back.replaceChildren(...[...memories.values()].map((memory) => {
      const item = make("span", "", memory.name);
      item.append(bar(memory), `${size(used(memory))}${memory.total ? ` of ${round(memory.total)}` : ""}`);
      return item;
    }));
  }

  function bar({ total, budget, most, left, after, all }) {
    const drawn = make("div", "gl-bar"), own = after ?? 0, other = Math.max(own, all ?? 0);
    const whole = total ?? Math.max(most, other, 1), at = (bytes) => Math.min(100, 100 * bytes / whole);
    const add = (css) => { drawn.append(make("i")); drawn.lastChild.style.cssText = css; };
    const part = (from, to, colour) => add(`left:${at(from)}%;width:${at(to) - at(from)}%;background:${colour}`);
    const line = (bytes, look) => add(`left:calc(${at(bytes)}% - 2px);border-left:2px ${look}`);
    part(0, own, left !== null && total && left < total / 20 ? RED : BLUE);
    part(own, other, "#9e9e9e99");
    if (most > own) line(most, "solid currentColor");
    if (budget) line(budget, `dashed ${AMBER}`);
    drawn.setAttribute("aria-hidden", "true");
    return drawn;
  }

  function draw() {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      if (!running) ticking = clearInterval(ticking);
      const found = bands();
      views.forEach((one) => one.draw(found));
      drawStrip();
    });
  }

  // -- one view

  function newView() {
    const root = make("div", "gl", "", "Memory panel"), alarm = make("div", "gl-alarm"), bars = make("div", "gl-bars");
    const chart = make("div", "gl-chart", "", "Cells; arrow keys move, Enter shows the report"), lanes = make("div");
    const most = make("div", "gl-most"), line = make("div"), hint = make("div", "gl-hint"), report = make("div", "gl-report");
    const buttons = new Map();  // the bands, by cell
    let open = null, current = null;
    root.setAttribute("role", "region");
    root.dataset.lmSuppressShortcuts = "true";  // JupyterLab leaves the keys to us
    line.setAttribute("aria-live", "polite");
    chart.setAttribute("role", "group");
    most.setAttribute("aria-hidden", "true");
    chart.append(lanes);
    report.hidden = alarm.hidden = true;
    root.append(make("style", "", STYLE), alarm, bars, chart, most, line, hint, report);

    root.onkeydown = ({ key }) => {
      if (key === "Escape" && open !== null) close();
    };
    chart.onkeydown = (event) => {
      const order = [...buttons.values()], at = order.indexOf(event.target);
      const to = order[{ ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: order.length - 1 }[event.key]];
      if (!to) return;
      event.preventDefault();
      to.focus();
    };
    const hinting = ({ type, target }) => {
      const cell = type.endsWith("out") ? null : cells.get(target.at);
      hint.textContent = cell ? inWords(cell) : caption();
      if (cell && type === "focusin") rove(target.at);
    };
    for (const kind of ["pointerover", "pointerout", "focusin", "focusout"]) chart.addEventListener(kind, hinting);
    root.addEventListener("focusin", ({ target }) => { view.focused = target; });
    root.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget) view.focused = null; });

    /** Make this the one band that Tab reaches. */
    function rove(at) {
      current = at;
      buttons.forEach((button, one) => { button.tabIndex = one === at ? 0 : -1; });
    }

    function caption() {
      if (running) return `${running.name} runs: ${time(running.time_s).replace(/\.\d+/, "")}`;
      const kept = cells.size, count = `${kept} cell${kept > 1 ? "s" : ""}`;
      if (!kept) return "Run a cell: what it needs appears here.";
      const gpu = memories.size > 1 ? " Used: of RAM by this process, of each GPU by all processes." : "";
      return `${total > kept ? `${kept} of ${total} cells` : count}, wider where they took longer.${gpu}`;
    }

    function show(cell) {
      if (cell.at === open) return close();
      open = cell.at;
      report.replaceChildren();
      ask({ ask: "report", at: open });
      scrollTo(cell, root);
      return draw();
    }

    function close() {
      buttons.get(open)?.focus({ preventScroll: true });
      open = null;
      report.hidden = true;
      draw();
    }

    function reported({ report: at, html }) {
      if (at !== open) return;
      const button = make("button", "gl-close", "×", "Close the report");
      button.onclick = close;
      report.replaceChildren(...harmless(html), button);
      report.hidden = false;
    }

    function drawBars() {
      bars.replaceChildren(...[...memories.values()].flatMap((memory) => {
        const { name, left, total, budget, most, mostAtLeast } = memory, words = make("div", "gl-words");
        const items = [`${size(used(memory))}${total ? ` of ${round(total)}` : ""}`, left !== null && `${size(left)} left`,
          most && `highest ${mostAtLeast ? "at least " : ""}${size(most)}`, budget && `budget ${round(budget)}`];
        words.append(...items.filter(Boolean).flatMap((item) => [make("span", "", item), " "]));
        return [make("b", "", name), bar(memory), words];
      }));
    }

    function drawLanes(found) {
      lanes.replaceChildren(...[...memories].map(([memory, { name, total, budget, most }]) => {
        const lane = make("div", "gl-lane"), near = [total, budget].filter((at) => at && at < 2.5 * most);
        const top = 1.3 * Math.max(MB, most, ...near), y = (bytes) => (100 - 100 * bytes / top).toFixed(1);
        const runs = [[]];
        let drawn = "";
        for (const { cell, left, width } of found) {
          const of = ({ figures }) => figures.find((use) => use.memory === memory && use.before !== null);
          const use = of(cell), x = (seconds) => (left + width * Math.min(1, seconds / (cell.time_s || 1))).toFixed(2);
          if (!use) { runs.push([]); continue; }
          const within = (cell.points ?? []).filter(of).map((point) => [x(point.time_s), y(of(point).after)]);
          runs.at(-1).push([x(0), y(use.before)], ...within, [x(cell.time_s || 1), y(use.after)]);
          if (use.highest - Math.max(use.before, use.after) > top * 0.03) {
            drawn += `<path stroke="${RED}" d="M${x(0)} ${y(use.highest)}h${width.toFixed(2)}"/>`;
          }
        }
        for (const run of runs.filter((one) => one.length)) {
          const course = [[run[0][0], 100], ...run, [run.at(-1)[0], 100]].join(" ");
          drawn = `<polygon fill="${BLUE}" fill-opacity=".65" points="${course}"/>${drawn}`;
        }
        for (const at of near) {
          drawn += `<path stroke="${at === budget ? AMBER : "#888"}" stroke-dasharray="5 3" d="M0 ${y(at)}H100"/>`;
        }
        // Figures alone, no text.
        lane.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">${drawn}</svg>`;
        if (memories.size > 1) lane.append(make("span", "", name));
        return lane;
      }));
    }

    function drawBands(found) {
      const old = new Map(buttons), pulse = chart.querySelector(".gl-runs");
      if (!running) pulse?.remove();
      buttons.clear();
      for (const { cell, left, width, runs } of found) {
        const button = (runs ? pulse : old.get(cell.at)) ?? make(runs ? "div" : "button");
        old.delete(cell.at);
        button.className = `gl-band${runs ? " gl-runs" : cell.outcome ? " gl-failed" : ""}`;
        button.style.cssText = `left:${left}%;width:${width}%`;
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

    /** The cells that needed most, with their number and what that was, where there is room. */
    function drawMost(found) {
      const width = most.clientWidth || 600, taken = [];
      most.replaceChildren();
      for (const cell of ranked().slice(0, 10)) {
        const band = found.find((one) => one.cell === cell), use = neediest(cell);
        const text = `${cell.count ? `[${cell.count}]` : cell.name} ${use.atLeast ? "≥ " : ""}${size(needed(use))}`;
        const half = 4 + 3.6 * text.length;
        const middle = band && Math.max(half, Math.min(width - half, (band.left + band.width / 2) / 100 * width));
        if (!band || taken.length > 4 || taken.some((one) => Math.abs(one.middle - middle) < one.half + half)) continue;
        taken.push({ middle, half });
        most.append(make("span", "", text));
        most.lastChild.style.left = `${middle}px`;
      }
    }

    function drawWords(found) {
      const last = found.filter(({ cell, runs }) => !runs && !cell.ours).at(-1)?.cell;
      alarm.hidden = !last?.advice;
      alarm.replaceChildren(make("b", "", "Out of memory"), ` · ${last?.name} · ${last?.advice?.replaceAll("`", "")}`);
      const words = stopped ? "Not live: the reports were stopped, or the kernel ended." : said;
      if (line.textContent !== words) line.textContent = words;
      if (!chart.querySelector("button:hover, button:focus")) hint.textContent = caption();
    }

    const view = {
      root, reported, focused: null,
      draw(found) {
        chart.hidden = !found.length;
        [drawBars, drawLanes, drawBands, drawMost, drawWords].forEach((step) => step(found));
      },
    };
    views.add(view);
    inSight.observe(root);
    new ResizeObserver(draw).observe(root);
    draw();
    return view;
  }

  /** Show the cell where the front end can: JupyterLab has its number beside it. */
  function scrollTo(cell, root) {
    const where = root.closest(".jp-NotebookPanel") ?? notebook;
    const prompts = [...(where?.querySelectorAll(".jp-CodeCell .jp-InputPrompt") ?? [])];
    const found = prompts.find((one) => one.textContent.trim() === `[${cell.count}]:`)?.closest(".jp-Cell");
    found?.scrollIntoView({ block: "nearest" });
    found?.classList.add("gl-found");
    setTimeout(() => found?.classList.remove("gl-found"), 1500);
  }

  model.on("comm:close", gone);
  model.on("comm_live_update", gone);
  setTimeout(() => { if (!mark) ask({ ask: "history" }); }, 300);

  return {
    take,
    view(el, signal) {
      const view = newView();
      el.replaceChildren(view.root);
      signal?.addEventListener("abort", () => setTimeout(() => {  // unless a picture's place took it meanwhile
        if (view.root.isConnected) return;
        views.delete(view);
        inSight.unobserve(view.root);
        drawStrip();
      }, 1000));
    },
  };
}
