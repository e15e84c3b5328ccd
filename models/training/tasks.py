"""Held-out task sets as JSON Lines for the engine's evaluation: one item a line with kind, messages, tools (if any) and expect.

    python tasks.py OUT_DIR [N]      writes sums.jsonl, reading.jsonl, tools.jsonl, json.jsonl

expect: sums {"number": the last number of a right answer}; reading {"text": words that a right answer contains, letter case aside};
json {"json": the value}; tools {"name", "arguments"}. Operand pairs, names and tools are those that training never uses."""
import json
import re
import sys

import procedural as Q

TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n?", re.S)
EMPTY = "<think>\n\n</think>\n\n"


def first_turn(doc):
    """-> messages before the first answer, that answer (without its working), tools, the prompt as trained"""
    i = min(j for j, (_, l) in enumerate(doc) if l)
    prompt, answer = "".join(t for t, _ in doc[:i]), doc[i][0].replace("<|im_end|>", "")
    answer = answer.split("</think>\n\n")[-1]
    msgs, tools = [], None
    for role, text in TURN.findall(prompt[: prompt.rindex("<|im_start|>assistant")]):
        if role == "system" and text.startswith(Q.T_HEAD):
            head, tail = text[len(Q.T_HEAD) :].split(Q.T_TAIL, 1)
            tools = [json.loads(x) for x in head.split("\n")]
            text = tail.strip("\n")
            if not text:
                continue
        msgs.append({"role": role, "content": text})
    return msgs, answer, tools, prompt


KEYS = [r"lives in (.+)", r"is called (.+)", r"color is (.+)", r"hobby is (.+)", r"^In (.+)", r"(\d+) (?:years|days|dollars)", r"goes to (.+)", r"travels by (.+)", r"(?:On|travels on) (\w+day)", r"leaves at (.+)", r"takes an? (.+)",
        r"^(.+) (?:is also|has the shop|likes|has an?)\b", r"likes (.+)", r"^The (.+) costs? the", r"cost (\d+)", r"^(.+)$"]


def key(q, a):
    """the words that matter in the answer a to q"""
    a = a.rstrip(".")
    if "not" in a.split():
        return "not"
    if q.startswith(("Where is", "Where can")):
        return re.sub(r"^.* is ", "", a)
    if re.match(r"What is (?:under|on|in|behind|next|inside|near) the", q) and a.startswith("The "):
        return re.sub(r"^The (.*) is .*", r"\1", a)
    if q.startswith("What color is the"):
        return a.split(" ")[-1]
    if re.search(r"(?:What is \w+'s job|What work|do for work)", q):
        return re.sub(r".* an? ", "", a)
    if re.search(r"(?:pet|animal) does", q):
        return re.sub(r".* an? ", "", a)
    if q.startswith("What does") and "like" in q or q.startswith("What food"):
        return re.sub(r".* likes ", "", a)
    for k in KEYS:
        m = re.search(k, a)
        if m:
            return m.group(1)


def items(kind, n):
    src = {"sums": "math", "reading": "read", "tools": "tool", "json": "json"}[kind]
    out, seen, i = [], set(), 0
    while len(out) < n:
        Q.R.seed(f"{kind} {i}")
        Q.HELD = True
        i += 1
        doc = Q.k_math(0.72) if kind == "sums" else Q.K[src]()
        msgs, a, tools, _ = first_turn(doc)
        ask = msgs[-1]["content"]
        if ask in seen:
            continue
        seen.add(ask)
        x = {"kind": kind, "messages": msgs}
        if tools:
            x["tools"] = tools
        if kind == "sums":
            x["expect"] = {"number": re.findall(r"-?\d+", a.replace(",", ""))[-1]}
        elif kind == "reading":
            q = re.findall(r"[^.?!\n:]*\?", ask.replace("o'clock.", "o'clock .").replace("...", ""))[-1].strip()
            x["expect"] = {"text": key(q, a)}
        elif kind == "json":
            x["expect"] = {"json": json.loads(a)}
        else:
            m = re.fullmatch(r"<tool_call>\n<function=([^>]+)>\n(.*)</function>\n</tool_call>", a, re.S)
            if not m:
                continue
            props = next(t for t in tools if t["function"]["name"] == m[1])["function"]["parameters"]["properties"]
            args = {k: int(v) if props[k]["type"] == "integer" else v for k, v in re.findall(r"<parameter=([^>]+)>\n(.*?)\n</parameter>\n", m[2], re.S)}
            x["expect"] = {"name": m[1], "arguments": args}
        out.append((x, doc))
    return out


if __name__ == "__main__":
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 160
    for kind in ("sums", "reading", "tools", "json"):
        with open(f"{sys.argv[1]}/{kind}.jsonl", "w", encoding="utf-8") as f:
            for x, _ in items(kind, n):
                f.write(json.dumps(x, ensure_ascii=False) + "\n")
