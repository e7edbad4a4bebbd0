"use strict";
// The sample browser and the replay of report.html. Its data are those of dashboards/browser.py; whatever they say is
// put on the page as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const lower = data.texts.map((text) => text.toLowerCase());
  const PAGE = 40;
  const MARK = { true: "✓", false: "✗", null: "·" };
  const CORRECT = { true: "right", false: "wrong", null: "not scored" };
  const samples = data.samples.map(([cell, row, state, nfe, controlNfe, accepted, passes, seconds, correct, answer, text,
    control, error, replay]) => ({
    at: data.cells[cell], row, state, nfe, controlNfe, accepted, passes, seconds, correct, answer, error, replay,
    text: text === null ? null : data.texts[text], lower: text === null ? "" : lower[text], control: control === null ? null : data.texts[control],
  }));

  // ---- small helpers

  /** An element with attributes and children; a function is a listener, a string child is text. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  const words = [String, String, (value) => `T ${value}`, (value) => `seed ${value}`];
  const varies = words.map((_, axis) => new Set(data.cells.map((at) => at[axis])).size > 1);
  const place = (at, axes = words.map(() => true)) =>
    words.map((word, axis) => word(at[axis])).filter((_, axis) => axes[axis]).join(" · ");
  const method = (at) => (at[5] ? `${at[4]} ${at[5]}` : at[4]);

  // ---- filter

  const filters = document.getElementById("filters");
  const list = document.getElementById("found");
  const count = document.getElementById("count");
  const more = document.getElementById("more");
  const choices = new Map(); // a select -> what a sample has of it
  const search = make("input", { type: "search", placeholder: "text, row, answer, error", input: () => filter() });

  function choice(title, of, shown = String) {
    const values = [...new Set(samples.map(of))];
    if (values.length < 2) return;
    const options = values.map((value, number) => make("option", { value: number }, shown(value)));
    const select = make("select", { change: () => filter() }, make("option", { value: "" }, "all"), ...options);
    choices.set(select, (sample) => select.value === "" || of(sample) === values[Number(select.value)]);
    filters.append(make("label", {}, make("span", {}, title), select));
  }

  function filter() {
    const word = search.value.trim().toLowerCase();
    const says = (sample) => sample.lower.includes(word) || [sample.row, sample.answer, sample.error]
      .some((said) => said !== null && String(said).toLowerCase().includes(word));
    const kept = samples.filter((sample) => [...choices.values()].every((fits) => fits(sample)) && (!word || says(sample)));
    count.textContent = `${kept.length.toLocaleString("en")} of ${samples.length.toLocaleString("en")} samples`;
    list.replaceChildren();
    show(kept, 0);
  }

  /** A page of `kept`, from `start` on; the list may have a sample on top that a button has put there. */
  function show(kept, start) {
    const end = Math.min(start + PAGE, kept.length);
    list.append(...kept.slice(start, end).map(line));
    more.hidden = end === kept.length;
    more.textContent = `${Math.min(PAGE, kept.length - end)} more`;
    more.onclick = () => show(kept, end);
  }

  function line(sample) {
    const good = sample.state !== "failed";
    const summary = make("summary", {},
      make("span", { class: `mark ${CORRECT[sample.correct].replace(" ", "-")}`, title: CORRECT[sample.correct] },
        MARK[sample.correct]),
      make("code", {}, sample.row),
      make("span", {}, method(sample.at), " ", make("span", { class: "place" }, [place(sample.at, varies), sample.replay === null ? "" : "▶ replay"]
        .filter(Boolean).join(" · "))),
      make("span", { class: "nfe" }, good ? `${sample.nfe} passes` : ""),
      make("span", { class: `state ${sample.state}` }, sample.state === "identical" && !sample.passes ? "" : sample.state),
    );
    const details = make("details", { class: "sample" }, summary);
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(body(sample));
    });
    return details;
  }

  // ---- one sample

  function body(sample) {
    const inside = make("div");
    const replay = sample.replay === null ? null : data.replays[sample.replay];
    inside.append(make("p", {}, facts(sample)));
    if (sample.error) inside.append(make("pre", { class: "bad" }, sample.error));
    if (replay) inside.append(heading("Prompt"), make("pre", {}, data.texts[replay.prompt]));
    if (sample.text !== null) inside.append(heading("Text"), make("pre", {}, sample.text));
    if (sample.control !== null && sample.text !== null) {
      inside.append(heading("Against the control"), difference(sample.control, sample.text));
    }
    if (replay) inside.append(heading("Replay"), player(replay));
    return inside;
  }

  const heading = (text) => make("h4", {}, text);

  function facts(sample) {
    const said = [place(sample.at), method(sample.at)];
    if (sample.state !== "failed") {
      said.push(`${sample.nfe} target passes, the control ${sample.controlNfe}`);
      if (sample.passes) said.push(`${sample.accepted} drafts accepted in ${sample.passes} drafted passes`);
      if (sample.seconds) said.push(`${Number(sample.seconds.toPrecision(3))} s`);
    }
    said.push(CORRECT[sample.correct] + (sample.answer === null ? "" : `: ${sample.answer}`));
    return said.join(" · ");
  }

  // ---- difference

  /** Both texts in one: what only the control has struck out, what only this one has underlined. */
  function difference(old, now) {
    const [a, b] = [split(old), split(now)];
    const box = make("pre", { class: "difference" });
    if (old === now) return make("p", {}, "The same text of other tokens.");
    for (const [tag, text] of edits(a, b)) box.append(tag ? make(tag, {}, text) : text);
    return box;
  }

  const split = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

  /** [tag, text] pieces of the longest common subsequence; one great edit where that would take too long. */
  function edits(a, b) {
    let head = 0, tail = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head++;
    while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
    const [x, y] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
    const middle = x.length * y.length > 4e6 ? [["del", x.join("")], ["ins", y.join("")]] : common(x, y);
    return [[null, a.slice(0, head).join("")], ...middle, [null, a.slice(a.length - tail).join("")]];
  }

  function common(x, y) {
    const width = y.length + 1;
    const longest = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--) {
      for (let j = y.length - 1; j >= 0; j--) {
        longest[i * width + j] = x[i] === y[j] ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
      }
    }
    const found = [];
    const add = (tag, word) => (found.length && found.at(-1)[0] === tag ? (found.at(-1)[1] += word) : found.push([tag, word]));
    let i = 0, j = 0;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) add(null, (j++, x[i++]));
      else if (j === y.length || (i < x.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) add("del", x[i++]);
      else add("ins", y[j++]);
    }
    return found;
  }

  // ---- replay

  const pairs = (flat) => Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i], flat[2 * i + 1]]);

  /** A frame or two a pass: the drafts it is offered, if any, then what is accepted and committed. */
  function frames(replay) {
    const before = new Map();
    return replay.passes.flatMap(([steps, drafts, accepted], number) => {
      const start = new Map(before);
      const commits = steps.flatMap((step, i) => pairs(step).map(([at, piece]) => [at, piece, i < accepted.length]));
      for (const [at, piece] of commits) before.set(at, piece);
      const frame = { number, start, commits, drafts, accepted };
      return drafts.length ? [{ ...frame, done: false }, { ...frame, done: true }] : [{ ...frame, done: true }];
    });
  }

  function player(replay) {
    const all = frames(replay);
    const last = Math.max(...all.flatMap((frame) => frame.commits.map(([at]) => at)), 0);
    const said = make("p", { class: "said", "aria-live": "polite" });
    const text = make("div", { class: "tokens" });
    const tree = make("div", { class: "tree" });
    const slider = make("input", { type: "range", min: 0, max: all.length - 1, value: 0, "aria-label": "step of the replay",
      input: () => go(Number(slider.value)) });
    const button = (label, title, press) => make("button", { type: "button", title, "aria-label": title, click: press }, label);
    const play = button("▶", "play or pause (space)", () => toggle());
    let now = 0, timer = null;

    function go(to) {
      now = Math.min(Math.max(to, 0), all.length - 1);
      slider.value = now;
      draw(replay, all[now], last, said, text, tree);
    }
    function toggle() {
      if (timer !== null) return stop();
      if (now === all.length - 1) go(0);
      play.textContent = "❚❚";
      timer = setInterval(() => (now === all.length - 1 || !box.isConnected ? stop() : go(now + 1)), 600);
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "▶";
    }
    function key(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return; // the reader's own, as Alt+Left is "back"
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1 }[event.key];
      if (to !== undefined && event.target !== slider) go(to);
      else if (event.key === " " && event.target.tagName !== "BUTTON") toggle();
      else return;
      event.preventDefault();
    }

    const legend = make("p", { class: "legend" }, ...[["offered", "offered"], ["taken", "a draft, accepted"],
      ["new", "the target's own step"]].map(([kind, said]) => make("span", {}, make("i", { class: `token ${kind}` }), said)));
    const bar = make("div", { class: "bar" }, button("◀", "a step back (left arrow)", () => go(now - 1)), play,
      button("▶|", "a step on (right arrow)", () => go(now + 1)), slider);
    legend.append(make("span", {}, "keys: ← → space"));
    const box = make("div", { class: "player", tabindex: 0, role: "group", "aria-label": "replay; arrow keys step, space plays",
      keydown: key }, bar, said, legend, text, tree);
    go(0);
    return box;
  }

  const shown = (piece) => piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";

  function draw(replay, frame, last, said, text, tree) {
    const { number, start, commits, drafts, accepted, done } = frame;
    const size = replay.block, token = (piece) => shown(replay.pieces[piece]);
    const kinds = new Map();
    if (done) for (const [at, piece, taken] of commits) kinds.set(at, [taken ? "taken" : "new", token(piece)]);
    else {
      for (const draft of drafts) {
        for (const [at, piece] of pairs(draft.slice(1))) if (!kinds.has(at)) kinds.set(at, ["offered", token(piece)]);
      }
    }
    const open = new Set([...kinds.keys()].map((at) => Math.floor((at - replay.start) / size)));
    const blocks = [];
    for (let begin = replay.start, block = 0; begin <= last; begin += size, block++) {
      const tokens = [];
      for (let at = Math.max(begin, 0); at < begin + size; at++) {
        const [kind, word] = kinds.get(at) || (start.has(at) ? ["", token(start.get(at))] : ["masked", ""]);
        tokens.push(make("span", { class: `token ${kind}`, title: `position ${at}` }, word));
      }
      blocks.push(make("div", { class: open.has(block) && "open" }, ...tokens));
    }
    text.replaceChildren(...blocks);
    const what = !drafts.length ? "no drafts; the target's own step"
      : done ? `${accepted.length} of ${drafts.length} drafts accepted, and the target's own step`
        : `${drafts.length} drafts offered`;
    said.textContent = `Pass ${number + 1} of ${replay.passes.length}: ${what}.`;
    const title = () => make("p", {}, "The drafts, a column a step: the position, and the token that it would get.");
    tree.replaceChildren(...(drafts.length ? [title(), branches(drafts, done ? new Set(accepted) : null, token)] : []));
  }

  /** The drafts as a tree, a column a depth. Those of `taken` are marked; null where none has been tried yet. */
  function branches(drafts, taken, token) {
    const children = new Map();
    drafts.forEach(([parent], i) => children.set(parent, [...(children.get(parent) || []), i + 1]));
    const under = (number) => (children.has(number) ? make("ul", {}, ...children.get(number).map(node)) : null);
    const node = (number) => {
      const commits = pairs(drafts[number - 1].slice(1)).map(([at, piece]) => [make("small", {}, String(at)), token(piece)]);
      const kind = taken === null ? "offered" : taken.has(number) ? "taken" : "missed";
      return make("li", {}, make("span", { class: `token ${kind}` }, ...commits.flat()), under(number));
    };
    return under(0) || make("ul");
  }

  // ---- begin

  for (const [number, title] of data.axes.entries()) {
    choice(title === "temperature" ? "T" : title, (sample) => sample.at[number],
      (value) => (title === "budget" && !value ? "0 (control)" : String(value)));
  }
  choice("answer", (sample) => sample.correct, (correct) => CORRECT[correct]);
  choice("text", (sample) => sample.state);
  choice("replay", (sample) => sample.replay !== null, (there) => (there ? "with" : "without"));
  filters.append(make("label", { class: "search" }, make("span", {}, "search"), search));
  for (const button of document.querySelectorAll("button[data-sample]")) {
    button.addEventListener("click", () => {
      const opened = line(samples[Number(button.dataset.sample)]);
      list.prepend(opened);
      opened.open = true;
      opened.scrollIntoView({ block: "start" });
      opened.firstChild.focus();
    });
  }
  document.getElementById("browser").hidden = false;
  filter();
})();
