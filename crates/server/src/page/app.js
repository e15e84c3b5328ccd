// The page.

const $ = id => document.getElementById(id);
const icon = path => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
};
const ICONS = {
  send: "M12 19V5M6 11l6-6 6 6", stop: "M7 7h10v10H7z", copy: "M9 9h10v10H9zM5 15V5h10", again: "M4 12a8 8 0 0 1 14-5.3L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.3L4 15M4 20v-5h5",
  edit: "M4 20l1-4L16 5l3 3L8 19z", drop: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13", tool: "M14 7a4 4 0 0 0 5 5l-8 8-3-3 8-8a4 4 0 0 1-2-2z",
};
const IDEAS = ["Explain how rain forms", "Write a haiku about a small tree", "What can 1-bit weights do?", "Plan a quiet Sunday"];

let models = [];
let running = null;

// The model.

const current = () => models.find(m => m.name === store.model) || models.find(m => m.status !== "unavailable") || models[0];

async function refresh() {
  try {
    models = (await (await ask("/props")).json()).models;
    $("state").textContent = "";
  } catch (error) {
    if (error.status === 401) return void openSettings("This server wants an API key.");
    $("state").textContent = "the server does not answer";
    return;
  }
  const select = $("model");
  select.replaceChildren(...models.map(m => {
    const gone = m.status === "unavailable";
    const note = gone ? " (unavailable)" : paints(m) && models.length > 1 ? " (pictures)" : "";
    return element("option", { value: m.name, disabled: gone, title: m.reason || false, selected: m === current() }, m.name + note);
  }));
  showModel();
}

function showModel() {
  const model = current();
  if (!model) return;
  const draws = paints(model);
  $("picture").hidden = !draws;
  $("text").placeholder = draws ? "Describe a picture" : "Ask anything";
  $("hint").textContent = draws ? "Enter makes it, Shift Enter breaks the line, Esc stops. The same prompt, seed, size and steps give the same picture."
    : "Enter sends, Shift Enter breaks the line, Esc stops. Answers can be wrong.";
  if (!store.here.messages.length) showLog();
  $("think").hidden = true;
  if (draws) {
    $("state").textContent = model.status === "loaded" ? "makes pictures" : model.status === "loading" ? "loading…" : "opens with the first picture";
    if (model.pictures) $("picture").querySelector('[name="steps"]').placeholder = String(model.pictures.steps);
    return;
  }
  const context = model.n_ctx || model.n_ctx_train;
  $("state").textContent = model.status === "loaded" ? `${context.toLocaleString()} tokens of context` : model.status === "loading" ? "loading…" : "loads with the first message";
  const chip = $("think");
  chip.hidden = model.thinks === false;
  const think = store.settings.think;
  chip.setAttribute("aria-pressed", String(think === true));
  chip.textContent = think === true ? "Thinking: on" : think === false ? "Thinking: off" : "Thinking: model's own";
  for (const [name, value] of Object.entries(model.sampling || {})) {
    const field = $("options").querySelector(`[name="${name}"]`);
    if (field) field.placeholder = String(value);
  }
}

// The list of conversations.

function showTalks() {
  const sorted = [...store.talks].sort((a, b) => b.changed - a.changed);
  $("talks").replaceChildren(...sorted.map(talk => element("li", { class: talk === store.here ? "here" : "" },
    element("button", { class: "open", type: "button", "aria-current": talk === store.here ? "true" : false, onclick: () => go(talk) }, talk.title || "Untitled"),
    element("button", { class: "quiet drop", type: "button", "aria-label": `Delete ${talk.title}`, onclick: () => dropTalk(talk) }, icon(ICONS.drop)))));
}

function go(talk) {
  stop();
  store.here = talk || store.begin();
  closeSide();
  showTalks();
  showLog();
  $("text").focus();
}

function dropTalk(talk) {
  if (!confirm(`Delete “${talk.title || "Untitled"}”?`)) return;
  store.drop(talk);
  if (talk === store.here) go(null); else showTalks();
}

// The conversation.

function atEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

function showLog() {
  const messages = store.here.messages;
  const log = $("log");
  if (!messages.length) {
    const tree = document.querySelector(".brand svg").cloneNode(true);
    const draws = paints(current());
    log.replaceChildren(element("div", { class: "welcome" }, tree, element("h1", {}, draws ? "What should it show?" : "What is on your mind?"),
      element("p", {}, "Small weights, on your own machine."),
      element("div", { class: "ideas" }, ...(draws ? PICTURE_IDEAS : IDEAS).map(idea => element("button", { type: "button", onclick: () => say(idea) }, idea)))));
    return;
  }
  log.replaceChildren(...messages.map((message, index) => turn(message, index)).filter(Boolean));
  toEnd();
}

function turn(message, index) {
  if (message.role === "user") return userTurn(message, index);
  if (message.role === "assistant") return assistantTurn(message, index);
  return null;
}

const tool = (label, path, action) => element("button", { class: "quiet", type: "button", "aria-label": label, title: label, onclick: action }, icon(path));

function userTurn(message, index) {
  const node = element("article", { class: "turn user", "aria-label": "You" });
  const copy = tool("Copy", ICONS.copy, () => copyText(message.content, copy));
  node.append(element("div", { class: "said" }, message.content),
    element("div", { class: "tools" }, tool("Edit", ICONS.edit, () => edit(node, message, index)), copy));
  return node;
}

function edit(node, message, index) {
  const area = element("textarea", { "aria-label": "Edit the message" });
  area.value = message.content;
  const done = () => {
    if (!area.value.trim()) return;
    stop();
    store.here.messages.length = index;
    say(area.value);
  };
  area.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); showLog(); }
  });
  node.replaceChildren(area, element("div", { class: "tools", style: "opacity:1" },
    element("button", { class: "plain", type: "button", onclick: () => showLog() }, "Cancel"),
    element("button", { class: "firm", type: "button", onclick: done }, "Send")));
  area.focus();
}

function assistantTurn(message, index) {
  const node = element("article", { class: "turn assistant", "aria-label": "Answer" });
  drawAnswer(node, message, index);
  return node;
}

const seconds = ms => (ms < 950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`);

/** Draws an answer, complete or on its way. What stays the same stays in place, so that a fold keeps its state. */
function drawAnswer(node, message, index) {
  const live = running?.message === message;
  node.className = "turn assistant" + (live ? " live" : "") + (live && !message.content ? " bare" : "");
  let thought = node.querySelector(".thought");
  if (message.reasoning && !thought) {
    thought = element("details", { class: "thought", open: live }, element("summary"), element("div", { class: "inner" }));
    node.prepend(thought);
  }
  if (thought) {
    const now = live && !message.content && !message.calls?.length;
    if (thought.classList.contains("now") && !now) thought.open = false;
    thought.classList.toggle("now", now);
    const inner = thought.querySelector(".inner");
    const follow = inner.scrollHeight - inner.scrollTop - inner.clientHeight < 40;
    inner.textContent = message.reasoning;
    if (follow) inner.scrollTop = inner.scrollHeight;
    thought.querySelector("summary").textContent = now ? `Thinking… ${seconds(performance.now() - running.began)}` : message.thought ? `Thought for ${seconds(message.thought)}` : "Thought";
  }
  const shown = node.querySelector(":scope > .body"), says = !message.pictures && message.content;
  node.querySelectorAll(`:scope > :not(.thought${says ? ", .body" : ""})`).forEach(child => child.remove());
  const reading = live && running.reading;
  if (says && shown) markdown(message.content, shown);
  else if (message.pictures) node.append(gallery(message, live ? running : null, () => remake(index)));
  else if (reading && !message.reasoning && !message.content) {
    const words = reading.total ? `Reading ${reading.done.toLocaleString()} of ${reading.total.toLocaleString()} tokens` : "Waiting";
    node.append(element("div", { class: "reading" }, words, reading.total ? element("progress", { max: reading.total, value: reading.done, "aria-label": "Prompt read" }) : null));
  } else if (message.content || (live && !message.reasoning)) {
    node.append(markdown(message.content, element("div", { class: "body" })));
  }
  for (const call of message.calls || []) node.append(callCard(call, live, index));
  if (message.fault) node.append(element("div", { class: "fault", role: "alert" }, message.fault));
  if (message.finish === "length") node.append(element("div", { class: "note" }, "The answer was cut off: its limit of tokens, or the context, is used up."));
  if (message.finish === "stopped") node.append(element("div", { class: "note" }, "Stopped."));
  if (live) return;
  if (message.pictures) {
    const other = element("button", { class: "quiet", type: "button", onclick: () => regenerate(index, { n: message.count, size: message.size, steps: message.steps }) }, "Other seeds");
    return void node.append(element("div", { class: "tools" }, other, element("span", { class: "stats" }, `${message.size || ""}${message.steps ? `, ${message.steps} steps` : ""}`)));
  }
  const copy = message.content ? element("button", { class: "quiet", type: "button", onclick: () => copyText(message.content, copy) }, "Copy") : null;
  const again = element("button", { class: "quiet", type: "button", onclick: () => regenerate(index) }, "Regenerate");
  node.append(element("div", { class: "tools" }, ...[copy, again].filter(Boolean), message.stats ? element("span", { class: "stats", title: message.stats.long }, message.stats.short) : null));
}

function callCard(call, live, index) {
  let pretty = call.arguments;
  try {
    pretty = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch { /* Still on its way, or cut short. */ }
  const card = element("section", { class: "call", "aria-label": `Call of ${call.name}` },
    element("div", { class: "name" }, icon(ICONS.tool), call.name), element("pre", {}, pretty));
  if (call.result !== undefined) card.append(element("label", {}, "Result", element("pre", {}, call.result)));
  else if (!live && index === store.here.messages.length - 1) {
    const area = element("textarea", { rows: "2", placeholder: "Type what the tool returns" });
    area.addEventListener("input", () => { call.typed = area.value; });
    card.append(element("label", {}, "Result", area), element("div", { style: "padding:0 13px 11px" },
      element("button", { class: "firm", type: "button", onclick: () => sendResults(index) }, "Send results")));
  }
  return card;
}

function sendResults(index) {
  const message = store.here.messages[index];
  for (const call of message.calls) {
    call.result = call.typed ?? "";
    store.here.messages.push({ role: "tool", content: call.result, id: call.id });
  }
  showLog();
  answer();
}

// Asking and answering.

function say(text) {
  if (!text.trim() || running) return;
  store.here.messages.push({ role: "user", content: text });
  store.touch();
  showTalks();
  showLog();
  answer();
}

function regenerate(index, wish) {
  stop();
  store.here.messages.length = index;
  showLog();
  answer(wish);
}

/** Makes the pictures of a message again, from their seeds. */
function remake(index) {
  const message = store.here.messages[index];
  regenerate(index, { seed: message.pictures[0].seed, n: message.pictures.length, size: message.size, steps: message.steps });
}

/** Ends the answer under way. What comes next need not wait for the end of it. */
function stop() {
  running?.abort.abort();
  running = null;
  showRunning();
}

function showRunning() {
  const button = $("send");
  button.replaceChildren(icon(running ? ICONS.stop : ICONS.send));
  button.setAttribute("aria-label", running ? "Stop" : "Send");
  button.disabled = !running && !$("text").value.trim();
}

/** Answers the last message; with a picture where the model makes those, by this wish or by the fields below the box. */
async function answer(given) {
  const talk = store.here;
  const draws = paints(current());
  const wish = draws ? given ?? pictureWish() : null;
  const message = draws ? pictureMessage(talk.messages.findLast(m => m.role === "user")?.content, wish) : { role: "assistant", content: "", reasoning: "", calls: [] };
  const before = talk.messages.filter(m => !m.pictures && (!m.fault || m.content));
  const job = { message, abort: new AbortController(), began: performance.now(), reading: { done: 0, total: 0 } };
  running = job;
  talk.messages.push(message);
  const index = talk.messages.length - 1;
  const node = assistantTurn(message, index);
  $("log").append(node);
  toEnd();
  showRunning();
  let drawn = 0;
  const draw = () => {
    drawn = 0;
    if (running !== job || store.here !== talk) return;
    const follow = atEnd();
    drawAnswer(node, message, index);
    if (follow) toEnd();
  };
  const soon = () => { drawn ||= requestAnimationFrame(draw); };
  const clock = setInterval(() => { if (draws || (message.reasoning && !message.content)) soon(); }, 500);
  try {
    const wanted = draws ? pictureRequest(message, wish, current()?.name) : request(before, current()?.name, current()?.thinks !== false);
    const response = await ask(draws ? "/v1/images/generations" : "/v1/chat/completions", { method: "POST", body: JSON.stringify(wanted), signal: job.abort.signal });
    for await (const event of events(response)) (draws ? takePicture : take)(job, event, soon);
  } catch (error) {
    if (job.abort.signal.aborted) message.finish = "stopped";
    else message.fault = error instanceof TypeError ? "The server does not answer. Is it still running?" : error.message;
    if (error.status === 401) openSettings("This server wants an API key.");
  }
  clearInterval(clock);
  if (drawn) cancelAnimationFrame(drawn);
  if (running === job) running = null;
  if (store.here === talk) {
    const follow = atEnd();
    drawAnswer(node, message, index);
    if (follow) toEnd();
    $("status").textContent = message.fault || (draws ? "The picture is complete." : "The answer is complete.");
  }
  const here = store.here;
  store.here = talk;
  store.touch();
  store.here = here;
  showTalks();
  showRunning();
  if (current()?.status !== "loaded") refresh();
}

function take(job, event, soon) {
  const message = job.message;
  if (event.reading) job.reading = event.reading;
  if (event.error) throw new Refused(event.error.message);
  const choice = event.choices?.[0];
  if (choice) {
    const delta = choice.delta;
    if (delta.reasoning_content || delta.content || delta.tool_calls) job.first ??= performance.now();
    message.reasoning += delta.reasoning_content || "";
    if ((delta.content || delta.tool_calls) && message.reasoning) message.thought ??= performance.now() - job.began;
    message.content += delta.content || "";
    for (const part of delta.tool_calls || []) {
      const call = (message.calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" });
      call.arguments += part.function.arguments || "";
    }
    message.finish = choice.finish_reason || message.finish;
  }
  if (event.usage) message.stats = stats(job, event.usage, event.timings);
  soon();
}

function stats(job, usage, timings) {
  const cached = usage.prompt_tokens_details.cached_tokens;
  const thinking = usage.completion_tokens_details.reasoning_tokens;
  const short = [`${timings.predicted_per_second.toFixed(1)} tok/s`, `${usage.completion_tokens} tokens`];
  if (job.first) short.push(`first after ${seconds(job.first - job.began)}`);
  const long = `${usage.prompt_tokens} prompt tokens, ${cached} of them from the cache, read at ${timings.prompt_per_second.toFixed(0)} tok/s; ${usage.completion_tokens} written${thinking ? `, ${thinking} of them thinking` : ""}`;
  return { short: short.join(" · "), long };
}

// Settings.

function openSettings(fault) {
  const dialog = $("options");
  for (const field of dialog.querySelectorAll("[name]")) field.value = store.settings[field.name] ?? "";
  showFault(fault);
  if (!dialog.open) dialog.showModal();
}

function showFault(fault) {
  $("options-fault").hidden = !fault;
  $("options-fault").textContent = fault || "";
}

/** Takes the fields over; returns what is wrong with them. */
function takeSettings() {
  const wanted = {};
  for (const field of $("options").querySelectorAll("[name]")) wanted[field.name] = field.value.trim();
  for (const [name, label] of [["tools", "Tools"], ["schema", "The JSON schema"]]) {
    if (!wanted[name]) continue;
    try {
      const json = JSON.parse(wanted[name]);
      if (name === "tools" && !Array.isArray(json)) return "Tools must be a JSON list.";
    } catch (error) {
      return `${label}: ${error.message}`;
    }
  }
  Object.assign(store.settings, wanted);
  store.save();
  return null;
}

$("options").querySelector("form").addEventListener("submit", event => {
  const fault = event.submitter?.value === "close" ? null : takeSettings();
  if (fault) {
    event.preventDefault();
    showFault(fault);
  } else {
    refresh();
  }
});
$("reset").addEventListener("click", () => {
  for (const field of $("options").querySelectorAll("[name]")) field.value = "";
});
$("settings").addEventListener("click", () => openSettings());

// Writing.

function grow() {
  const area = $("text");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
  showRunning();
}

function submit() {
  const area = $("text");
  const text = area.value;
  if (running || !text.trim()) return;
  area.value = "";
  grow();
  say(text);
}

$("write").addEventListener("submit", event => {
  event.preventDefault();
  if (running) stop(); else submit();
});
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
  if (event.key === "ArrowUp" && !event.target.value && !running) {
    const last = store.here.messages.findLast(m => m.role === "user");
    if (last) { event.preventDefault(); event.target.value = last.content; grow(); }
  }
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !$("options").open && !closeSide()) stop();
  if (event.altKey && event.key.toLowerCase() === "n") { event.preventDefault(); go(null); }
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("text").focus(); }
});
/** Closes the list of conversations where it lies over them; true when it did. */
function closeSide() {
  if (!document.body.classList.contains("side")) return false;
  document.body.classList.remove("side");
  $("menu").setAttribute("aria-expanded", "false");
  return true;
}

$("new").addEventListener("click", () => go(null));
$("menu").addEventListener("click", () => {
  const open = document.body.classList.toggle("side");
  $("menu").setAttribute("aria-expanded", String(open));
});
$("log").addEventListener("click", closeSide);
$("model").addEventListener("change", event => { store.model = event.target.value; store.save(); showModel(); });
$("think").addEventListener("click", () => {
  const next = { null: true, true: false, false: null };
  store.settings.think = next[String(store.settings.think ?? null)];
  store.save();
  showModel();
});
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  keep("theme", document.documentElement.dataset.theme);
});

// Another page of this browser has written.
addEventListener("storage", event => {
  const seen = store.here;
  if (!store.take(event)) return;
  showTalks();
  if (!running && store.here !== seen) showLog();
});
// An answer that is cut off by leaving or by loading anew is kept as far as it came.
addEventListener("pagehide", () => {
  if (!running) return;
  const { message } = running;
  stop();
  message.finish = "stopped";
  store.save();
});

const theme = load("theme", null);
if (theme) document.documentElement.dataset.theme = theme;
go(store.talks.reduce((a, b) => (a && a.changed > b.changed ? a : b), null));
grow();
refresh();
