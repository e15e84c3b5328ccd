// Asking the server.

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = store.settings.key;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, options) {
  const response = await fetch(path, { headers: headers(), ...options });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* Not every proxy answers in JSON. */ }
  throw new Refused(message || `the server answered ${response.status}`, response.status);
}

/** The events of a streamed answer. Comments tell how much of the prompt has been read. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      const reading = /^: prefill (\d+)\/(\d+)/.exec(line);
      if (reading) yield { reading: { done: +reading[1], total: +reading[2] } };
      else if (line === "data: [DONE]") return;
      else if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

const number = value => (value === "" || value == null || Number.isNaN(+value) ? undefined : +value);

/** The request for the next answer of a conversation. */
function request(messages, model, thinks) {
  const s = store.settings;
  const body = {
    model,
    messages: [...(s.system ? [{ role: "system", content: s.system }] : []), ...messages.map(wire)],
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: number(s.max_tokens),
    temperature: number(s.temperature),
    top_p: number(s.top_p),
    top_k: number(s.top_k),
    min_p: number(s.min_p),
    repeat_penalty: number(s.repeat_penalty),
    seed: number(s.seed),
    stop: s.stop || undefined,
  };
  if (thinks && s.think !== undefined && s.think !== null) body.enable_thinking = s.think;
  if (thinks && s.think !== false) body.thinking_budget = number(s.thinking_budget);
  if (s.tools) body.tools = JSON.parse(s.tools);
  if (s.schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(s.schema) } };
  return body;
}

/** A message as the server takes it, without what only the page needs. */
function wire(message) {
  const { role, content, reasoning, calls, id } = message;
  if (role === "tool") return { role, content, tool_call_id: id };
  const out = { role, content };
  if (reasoning) out.reasoning_content = reasoning;
  if (calls?.length) out.tool_calls = calls.map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return out;
}
