// The plot of the page: the figures of the cell at the pointer or of the arrow keys, its place below, zoom.
// All that it shows are texts of the page: the <title> of each link is "label\ntime\nRAM 1, 2, 3\n...".
(() => {
  'use strict';
  const plot = document.querySelector('.plot');
  if (!plot?.querySelector('.cells a')) return;
  const ALL = 10000; // the width of a panel in its own coordinates
  const [links, numbers, times] = ['.cells', '.numbers', '.times'].map((name) => plot.querySelector(name));
  const titles = [...plot.querySelectorAll('p')];
  const places = [document.querySelector('.about'), ...titles.map((title) => title.children[1])];
  const before = places.map((place) => place.textContent);
  const marks = [...plot.querySelectorAll('use[x]')]
    .map((mark) => [mark, 100 * parseFloat(mark.getAttribute('x'))]);
  const cells = [...links.children].map((link) => {
    const [title, rect] = link.children;
    const [label, took, ...figures] = title.textContent.split('\n');
    const left = +rect.getAttribute('x'), right = left + +rect.getAttribute('width');
    const target = document.getElementById(link.getAttribute('href').slice(1));
    title.remove(); // its text is shown by what follows
    link.removeAttribute('href'); // one stop for the Tab key, not hundreds
    return {link, label, took, figures, left, right, target, failed: link.matches('.bad')};
  });
  const range = add(links, 'rect', {});
  let from = 0, to = ALL; // what is seen
  let now = -1; // the cell whose figures are shown
  let drag, waiting;

  function add(parent, name, attributes, text = '') {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    set(node, attributes);
    node.textContent = text;
    return parent.appendChild(node);
  }

  function set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  }

  const between = (least, value, most) => Math.min(Math.max(least, value), most);
  const percent = (x) => `${100 * (x - from) / (to - from)}%`;
  const box = () => links.getBoundingClientRect();
  const pixels = (width) => width / (to - from) * box().width;
  const placeOf = (event) => from + between(0, (event.clientX - box().left) / box().width, 1) * (to - from);

  function cellAt(x) { // within 5 pixels; of cells within one another the inner one, which comes later
    let found = -1, least = 5 * (to - from) / box().width;
    cells.forEach(({left, right}, number) => {
      const away = Math.max(left - x, x - right, 0);
      if (away <= least) [found, least] = [number, away];
    });
    return found;
  }

  function figuresOf(cell, name) {
    const line = cell.figures.find((line) => line.startsWith(`${name} `));
    if (!line) return 'not used, or unknown';
    const words = (size) => `${(+size).toLocaleString('en')} MB`;
    const [consumed, needed, highest] = line.slice(name.length).match(/[\u2265-]?\d+/g)
      .map((size) => size.replace('-', '\u2212').replace(/\d+/, words));
    return `consumed ${consumed}, needed ${needed}, highest ${highest}`;
  }

  function show(number) {
    if (number === now) return;
    cells[now]?.link.classList.remove('now');
    now = number;
    let texts = before, read = ['no cell'];
    const cell = cells[now];
    if (cell) {
      cell.link.classList.add('now');
      const code = cell.target.closest('details').querySelector('code').textContent;
      texts = [[cell.label, cell.took, code].join(' \u00b7 ')];
      texts.push(...titles.map((title) => figuresOf(cell, title.dataset.name)));
      read = texts.map((text, at) => (at ? `${titles[at - 1].dataset.name} ${text}` : text));
    }
    places.forEach((place, at) => { place.textContent = texts[at]; });
    set(plot, {'aria-valuenow': now + 1, 'aria-valuetext': read.join('; ')});
  }

  function zoom(left, right) {
    const width = between(ALL / 2000, right - left, ALL);
    from = between(0, left, ALL - width);
    to = from + width;
    for (const one of plot.querySelectorAll('[viewBox]')) set(one, {viewBox: `${from} 0 ${width} 140`});
    for (const [mark, x] of marks) {
      set(mark, {x: percent(x), visibility: x < from || x > to ? 'hidden' : 'visible'});
    }
    writeNumbers();
    writeTimes();
  }

  function writeNumbers() { // failed cells first, where none covers another
    const taken = [];
    numbers.querySelectorAll('text').forEach((text) => text.remove());
    for (const cell of [...cells].sort((one, other) => other.failed - one.failed)) {
      const label = cell.label.replace(/^In \[(\d+)\]$/, '$1') + (cell.failed ? ' \u2715' : '');
      const middle = (Math.max(cell.left, from) + Math.min(cell.right, to)) / 2;
      const half = (label.length + 1) * 3.3, left = pixels(middle - from) - half, right = left + 2 * half;
      if (cell.right < from || cell.left > to || left < -7 || right > box().width + 7) continue;
      if (taken.some(([start, end]) => left < end && start < right)) continue;
      taken.push([left, right]);
      add(numbers, 'text', {x: percent(middle), y: 12, class: cell.failed ? 'bad' : ''}, label);
    }
  }

  function writeTimes() { // as ticks() in plot_data.py
    const second = ALL / plot.dataset.seconds, span = (to - from) / second;
    const [unit, size] = span >= 7200 ? ['h', 3600] : span >= 120 ? ['min', 60] : ['s', 1];
    const wide = span / size / 5, power = 10 ** Math.floor(Math.log10(wide));
    const step = power * [1, 2, 2.5, 5, 10].find((step) => step * power >= wide);
    const x = (count) => count * step * size * second;
    times.replaceChildren();
    for (let count = Math.ceil(from / x(1)); x(count) <= to; count++) {
      const label = count ? `${+(count * step).toPrecision(9)} ${unit}` : '0';
      add(times, 'text', {x: percent(x(count)), y: 14}, label);
    }
  }

  function jump() {
    const target = cells[now]?.target, details = target?.closest('details');
    if (!details) return;
    details.open = true;
    location.hash = target.id; // so that Back leads here again
    details.firstElementChild.focus({preventScroll: true});
    details.scrollIntoView();
  }

  function select(number) { // by key: it is brought into view
    show(between(0, number, cells.length - 1));
    const {left, right} = cells[now], half = (to - from) / 2;
    if (right < from || left > to) zoom((left + right) / 2 - half, (left + right) / 2 + half);
  }

  function magnify(by) { // by key: around the cell
    const {left, right} = cells[now] ?? {left: from, right: to}, half = by * (to - from) / 2;
    zoom((left + right) / 2 - half, (left + right) / 2 + half);
  }

  const keys = {
    ArrowRight: () => select(now + 1),
    ArrowLeft: () => select(now < 0 ? cells.length : now - 1),
    Home: () => select(0),
    End: () => select(cells.length),
    Enter: jump,
    '+': () => magnify(1 / 2),
    '-': () => magnify(2),
    Escape: () => zoom(0, ALL),
  };
  const events = {
    keydown(event) {
      if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    },
    blur: () => show(-1),
    dblclick: () => zoom(0, ALL),
    pointerdown(event) {
      if (event.button) return;
      const x = placeOf(event), number = cellAt(x);
      // A finger's first tap shows the figures, its second leads to the cell.
      drag = {x, left: event.clientX, moved: false, shows: event.pointerType === 'touch' && number !== now};
      links.setPointerCapture(event.pointerId);
      show(number);
    },
    pointermove(event) {
      const x = placeOf(event);
      if (!drag || !event.buttons) return show(cellAt(x));
      drag.moved ||= Math.abs(event.clientX - drag.left) > 4;
      if (drag.moved) set(range, {class: 'range', x: Math.min(x, drag.x), width: Math.abs(x - drag.x)});
    },
    pointerup(event) {
      set(range, {width: 0});
      const x = placeOf(event);
      if (drag?.moved) zoom(Math.min(x, drag.x), Math.max(x, drag.x));
    },
    pointercancel() { // a finger scrolls the page
      set(range, {width: 0});
      drag = null;
    },
    pointerleave(event) {
      if (event.pointerType === 'mouse' && !event.buttons) show(-1);
    },
    click(event) {
      clearTimeout(waiting);
      if (!drag || drag.moved || drag.shows || event.detail > 1) return;
      waiting = setTimeout(jump, to - from < ALL ? 300 : 0); // it may become a double click
    },
  };
  for (const [name, does] of Object.entries(events)) plot.addEventListener(name, does);
  addEventListener('resize', () => zoom(from, to));

  const picture = plot.firstElementChild;
  set(plot, {role: 'slider', tabindex: 0, 'aria-label': picture.getAttribute('aria-label')});
  set(plot, {'aria-valuemin': 0, 'aria-valuemax': cells.length, 'aria-valuenow': 0, 'aria-valuetext': 'no cell'});
  document.querySelector('.keys').textContent = 'Drag to zoom in, double click to see all. ' +
    'Keys: arrows move from cell to cell, Enter opens one, + and \u2212 zoom, Escape shows all.';
  zoom(0, ALL);
})();
