// Markdown to elements. Text goes into text nodes only, so that nothing a model writes can become markup.

function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*][\s\S]*?)\*\*|__([^\s_][\s\S]*?)__|\*([^\s*](?:[\s\S]*?[^\s*])?)\*|(?<![\w])_([^\s_](?:[\s\S]*?[^\s_])?)_(?![\w])|~~([\s\S]+?)~~|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>)"']+[^\s<>)"'.,;:!?])/;

function inline(text, parent) {
  while (text) {
    const found = INLINE.exec(text);
    if (!found) break;
    if (found.index) parent.append(text.slice(0, found.index));
    const [all, , code, bold, bold2, italic, italic2, struck, label, target, bare] = found;
    if (code !== undefined) parent.append(element("code", {}, code.trim() ? code.replace(/^ (.*) $/, "$1") : code));
    else if (label !== undefined || bare !== undefined) {
      const link = element("a", { href: target || bare, target: "_blank", rel: "noopener noreferrer" });
      if (label !== undefined) inline(label, link); else link.append(bare);
      parent.append(link);
    } else {
      const name = bold !== undefined || bold2 !== undefined ? "strong" : struck !== undefined ? "s" : "em";
      const node = element(name);
      inline(bold ?? bold2 ?? italic ?? italic2 ?? struck, node);
      parent.append(node);
    }
    text = text.slice(found.index + all.length);
  }
  if (text) parent.append(text);
  return parent;
}

function codeBlock(language, lines) {
  const text = lines.join("\n");
  const copy = element("button", { class: "quiet", type: "button", onclick: () => copyText(text, copy) }, "Copy");
  return element("div", { class: "code" },
    element("div", { class: "bar" }, element("span", {}, language || "text"), copy),
    element("pre", { tabindex: "0" }, element("code", {}, text)));
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = label; }, 1400);
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());

function list(lines, start, parent) {
  const [, indent, marker] = ITEM.exec(lines[start]);
  const ordered = /\d/.test(marker);
  const node = element(ordered ? "ol" : "ul", ordered && parseInt(marker) !== 1 ? { start: parseInt(marker) } : {});
  let at = start;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (found && found[1].length === indent.length && /\d/.test(found[2]) === ordered) {
      const item = element("li");
      const task = /^\[([ xX])\]\s+(.*)$/.exec(found[3]);
      if (task) item.append(task[1] === " " ? "☐ " : "☑ ");
      inline(task ? task[2] : found[3], item);
      node.append(item);
      at += 1;
    } else if (found && found[1].length > indent.length && node.lastChild) {
      at = list(lines, at, node.lastChild);
    } else if (!found && /^\s+\S/.test(lines[at]) && node.lastChild) {
      inline(" " + lines[at].trim(), node.lastChild);
      at += 1;
    } else if (!lines[at].trim() && ITEM.test(lines[at + 1] || "")) {
      at += 1;
    } else break;
  }
  parent.append(node);
  return at;
}

function markdown(text, parent) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const body = [];
      at += 1;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) body.push(lines[at++]);
      at += 1;
      parent.append(codeBlock(fence[2], body));
    } else if (heading) {
      parent.append(inline(heading[2], element("h" + Math.min(heading[1].length, 4))));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      parent.append(element("hr"));
      at += 1;
    } else if (/^\s*>/.test(line)) {
      const quoted = [];
      while (at < lines.length && /^\s*>/.test(lines[at])) quoted.push(lines[at++].replace(/^\s*> ?/, ""));
      parent.append(markdown(quoted.join("\n"), element("blockquote")));
    } else if (line.includes("|") && /^\s*\|?[\s:|-]*-[\s:|-]*$/.test(lines[at + 1] || "") && lines[at + 1].includes("|")) {
      const head = element("tr", {}, ...cells(line).map(cell => inline(cell, element("th"))));
      const rows = [];
      at += 2;
      while (at < lines.length && lines[at].includes("|")) rows.push(element("tr", {}, ...cells(lines[at++]).map(cell => inline(cell, element("td")))));
      parent.append(element("div", { class: "wide" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
    } else if (ITEM.test(line)) at = list(lines, at, parent);
    else {
      const words = [];
      while (at < lines.length && lines[at].trim() && !/^\s*(```|~~~|#{1,6}\s|>)/.test(lines[at]) && !(words.length && ITEM.test(lines[at]))) words.push(lines[at++]);
      const paragraph = element("p");
      words.forEach((part, index) => { if (index) paragraph.append(element("br")); inline(part, paragraph); });
      parent.append(paragraph);
    }
  }
  return parent;
}
