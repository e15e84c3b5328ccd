// Markdown to elements. Text goes into text nodes only, so that nothing a model writes can become markup. Every line is taken
// once, and the time is in proportion to the text: models write anything.

function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

// Inline.

/** What may begin something within a line; all else is plain text. */
const MARK = /\\[!-/:-@[-`{-~]|`+|[*_]+|~~+|!?\[|<https?:\/\/[^\s<>]+>|https?:\/\/[^\s<>"'`*]+/g;
const TARGET = /\]\(\s*<?(https?:\/\/[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/y;

/** For each length of a run of backticks, where such runs begin, ascending. */
function backticks(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  return runs;
}

/** The place behind each `[` where its `]` is, outside of code as far as brackets tell. */
function brackets(text) {
  const pairs = new Map(), open = [];
  for (const { 0: mark, index } of text.matchAll(/\\.|[[\]]/gs)) {
    if (mark === "[") open.push(index);
    else if (mark === "]" && open.length) pairs.set(open.pop(), index);
  }
  return pairs;
}

function link(target, ...children) {
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

function inline(text, parent, within = false) {
  const runs = backticks(text), pairs = brackets(text);
  // Texts and elements, and between them runs of marks that may become emphasis.
  const parts = [];
  let at = 0;
  const plain = end => { if (end > at) parts.push(text.slice(at, end)); };
  MARK.lastIndex = 0;
  for (let found; (found = MARK.exec(text));) {
    const [mark] = found, start = found.index;
    let end = start + mark.length, part = null;
    if (mark[0] === "\\") part = mark[1];
    else if (mark[0] === "`") {
      const places = runs.get(mark.length);
      while (places.length && places[0] < end) places.shift();
      if (places.length) {
        const code = text.slice(end, places[0]).replace(/\n/g, " ");
        part = element("code", {}, code.trim() ? code.replace(/^ (.*) $/, "$1") : code);
        end = places[0] + mark.length;
      }
    } else if (mark.endsWith("[")) {
      const close = pairs.get(end - 1);
      TARGET.lastIndex = close ?? 0;
      const target = close && !within && TARGET.exec(text);
      if (target) {
        part = inline(text.slice(end, close), link(target[1]), true);
        end = TARGET.lastIndex;
      }
    } else if (mark[0] === "<") {
      if (!within) part = link(mark.slice(1, -1), mark.slice(1, -1));
    } else if (mark[0] === "h") {
      const target = mark.replace(/[.,;:!?)\]}]+$/, tail => (tail[0] === ")" && mark.includes("(") ? ")" : ""));
      end = start + target.length;
      if (!within) part = link(target, target);
    } else {
      const before = text[start - 1] ?? " ", after = text[end] ?? " ";
      const word = /[\p{L}\p{N}]/u, space = /\s/;
      const opens = !space.test(after) && (word.test(after) || !word.test(before));
      const closes = !space.test(before) && (word.test(before) || !word.test(after));
      const inWord = mark[0] === "_" && word.test(before) && word.test(after);
      part = { mark: mark[0], left: mark.length, opens: opens && !inWord, closes: closes && !inWord };
    }
    if (part !== null) {
      plain(start);
      parts.push(part);
      at = end;
    }
    MARK.lastIndex = Math.max(end, start + 1);
  }
  plain(text.length);
  parent.append(...emphasised(parts));
  return parent;
}

/** Pairs the runs of marks from the inside out, as CommonMark does without its rule of three. */
function emphasised(parts) {
  const done = [], open = [];
  for (const part of parts) {
    if (part?.mark === undefined) {
      done.push(part);
      continue;
    }
    while (part.closes && part.left) {
      const fits = opener => opener.mark === part.mark && (part.mark !== "~" || Math.min(opener.left, part.left) > 1);
      const from = open.findLastIndex(fits);
      if (from < 0) break;
      const opener = open[from];
      const strong = opener.left > 1 && part.left > 1;
      const inside = done.splice(done.lastIndexOf(opener) + 1);
      done.push(element(part.mark === "~" ? "s" : strong ? "strong" : "em", {}, ...inside.flatMap(spelled)));
      opener.left -= strong ? 2 : 1;
      part.left -= strong ? 2 : 1;
      // What stood open inside has found no end there.
      open.length = opener.left ? from + 1 : from;
    }
    if (part.left) {
      done.push(part);
      if (part.opens && open.length < 32) open.push(part);
    }
  }
  return done.flatMap(spelled);
}

const spelled = part => (part?.mark === undefined ? [part] : part.left ? [part.mark.repeat(part.left)] : []);

// Blocks.

function codeBlock(language, lines) {
  const text = lines.join("\n");
  const copy = element("button", { class: "quiet", type: "button", onclick: () => copyText(text, copy) }, "Copy");
  return element("div", { class: "code" },
    element("div", { class: "bar" }, element("span", {}, language || "text"), copy),
    element("pre", { tabindex: "0" }, element("code", {}, text)));
}

async function copyText(text, button) {
  const before = [...button.childNodes], copied = await toClipboard(text);
  button.replaceChildren(copied ? "Copied" : "Not allowed");
  setTimeout(() => button.replaceChildren(...before), 1400);
}

/** Pages that come over plain HTTP from another machine have no clipboard of the newer kind. */
async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focus = document.activeElement, area = element("textarea", { style: "position:fixed;opacity:0", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focus?.focus();
    return copied;
  }
}

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^\s{0,3}(#{1,6})(?:\s+(.*?))??(?:\s+#+)?\s*$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^\s{0,3}>\s?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
/** Lists and quotes inside each other, beyond which they are text. */
const DEEPEST = 12;

const indent = line => /^[\s]*/.exec(line)[0].replace(/\t/g, "    ").length;
const cells = line => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map(cell => cell.trim().replace(/\\\|/g, "|"));
const isTable = (line, next) => line.includes("|") && next !== undefined && next.includes("|") && DASHES.test(next);

function table(lines) {
  const sides = cells(lines[1]).map(dash => (/^:-+:$/.test(dash) ? "center" : /-:$/.test(dash) ? "right" : null));
  const row = (line, name) => element("tr", {}, ...cells(line).map((cell, i) => inline(cell, element(name, { style: sides[i] && `text-align:${sides[i]}` }))));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, row(lines[0], "th")), element("tbody", {}, ...lines.slice(2).map(line => row(line, "td")))));
}

/** Whether a line begins something other than a paragraph. */
const begins = (line, next) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(line, next);

/** The end of the block that begins at a line which is not blank, and how to make it. At least one line is taken. */
function block(lines, start, depth) {
  const line = lines[start];
  let at = start + 1;
  const fence = FENCE.exec(line);
  if (fence) {
    const end = new RegExp(`^\\s*${fence[1][0]}{${fence[1].length},}\\s*$`);
    while (at < lines.length && !end.test(lines[at])) at += 1;
    const margin = indent(line);
    const body = lines.slice(start + 1, at).map(inner => inner.slice(Math.min(margin, indent(inner))));
    return { end: at + 1, make: () => codeBlock(fence[2], body) };
  }
  const heading = HEADING.exec(line);
  if (heading) return { end: at, make: () => inline(heading[2] || "", element("h" + Math.min(heading[1].length, 4))) };
  if (RULE.test(line)) return { end: at, make: () => element("hr") };
  if (depth < DEEPEST && QUOTE.test(line)) {
    while (at < lines.length && QUOTE.test(lines[at])) at += 1;
    return { end: at, make: () => blocks(lines.slice(start, at).map(inner => inner.replace(QUOTE, "")), element("blockquote"), depth + 1) };
  }
  if (isTable(line, lines[at])) {
    while (at < lines.length && lines[at].trim() && lines[at].includes("|")) at += 1;
    return { end: at, make: () => table(lines.slice(start, at)) };
  }
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, start, depth);
  while (at < lines.length && lines[at].trim() && !begins(lines[at], lines[at + 1])) at += 1;
  return { end: at, make: () => paragraph(lines.slice(start, at), element("p")) };
}

function paragraph(lines, parent) {
  lines.forEach((line, index) => {
    if (index) parent.append(element("br"));
    inline(line.trim(), parent);
  });
  return parent;
}

/** A list ends at the first line that is neither an item of its kind nor indented behind its marker. */
function list(lines, start, depth) {
  const first = ITEM.exec(lines[start]), margin = indent(lines[start]);
  const kind = marker => (/\d/.test(marker) ? "ol" : "ul");
  const name = kind(first[2]), items = [];
  let at = start, fence = null;
  while (at < lines.length) {
    const line = lines[at], found = fence ? null : ITEM.exec(line), deep = indent(line);
    if (found && deep < margin + 2 && deep >= margin - 1) {
      if (kind(found[2]) !== name || RULE.test(line)) break;
      items.push({ inner: deep + found[2].length + Math.min(found[3].length || 1, 4), lines: [found[4]] });
    } else if (line.trim() && deep < margin + 2) {
      // A line right behind an item's text, without a margin of its own, still belongs to it.
      if (fence || !lines[at - 1].trim() || begins(line, lines[at + 1])) break;
      items.at(-1).lines.push(line.trim());
    } else {
      const item = items.at(-1);
      item.lines.push(line.slice(Math.min(item.inner, deep)));
    }
    const mark = FENCE.exec(items.at(-1).lines.at(-1));
    if (mark) fence = fence ? null : mark[1];
    at += 1;
  }
  // Blank lines behind the last item are not the list's.
  while (!lines[at - 1].trim()) at -= 1;
  const number = parseInt(first[2]);
  return { end: at, make: () => element(name, { start: name === "ol" && number !== 1 && number }, ...items.map(item => listItem(item.lines, depth))) };
}

function listItem(lines, depth) {
  const node = element("li"), task = /^\[([ xX])\]\s+(.*)$/.exec(lines[0]);
  if (task) {
    node.append(task[1] === " " ? "☐ " : "☑ ");
    lines = [task[2], ...lines.slice(1)];
  }
  // The first words stand beside the marker and not in a paragraph of their own.
  let words = 0;
  while (words < lines.length && lines[words].trim() && !begins(lines[words], lines[words + 1])) words += 1;
  paragraph(lines.slice(0, words), node);
  return blocks(lines.slice(words), node, depth + 1);
}

/** All blocks, one after the other. */
function blocks(lines, parent, depth) {
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { end, make } = block(lines, at, depth);
    parent.append(make());
    at = end;
  }
  return parent;
}

/** What was made of each block of a parent, by its text. */
const made = new WeakMap();

/** Writes a text into a parent. Blocks that were there before and read the same stay as they are: an answer grows at its end, and
 * what a person selects or presses must not be replaced meanwhile. */
function markdown(text, parent) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n"), before = made.get(parent) || [], now = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { end, make } = block(lines, at, 0);
    const source = lines.slice(at, end).join("\n"), old = before[now.length];
    now.push(old?.source === source ? old : { source, node: make() });
    at = end;
  }
  const same = now.findIndex((entry, index) => entry !== before[index]);
  if (same >= 0 || now.length < before.length) {
    const kept = same < 0 ? now.length : same;
    before.slice(kept).forEach(entry => entry.node.remove());
    parent.append(...now.slice(kept).map(entry => entry.node));
  }
  made.set(parent, now);
  return parent;
}
