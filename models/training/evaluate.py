"""Small figures of a pack in plain PyTorch f32 (the engine's own `eval` is the reference for published numbers).
   python evaluate.py PACK text FILE...        loss per token, perplexity, bits per byte; documents end with <|endoftext|>
   python evaluate.py PACK tasks [N [KINDS]]   held-out sums, reading questions, tool calls, JSON; greedy decoding; tool-seen: tools of the training tables"""
import json
import math
import re
import sys

import torch

import decode
import export
import procedural


def text_loss(m, tok, path):
    docs = [d for d in open(path, encoding="utf-8").read().split("<|endoftext|>") if d.strip()]
    total, n, nbytes, agree, drafts = 0.0, 0, 0, 0, 0
    eot = tok.token_to_id("<|endoftext|>")
    cur, rows = [], []
    for d in docs:
        cur += tok.encode(d.strip("\n")).ids + [eot]
        nbytes += len(d.strip("\n").encode())
        while len(cur) >= 1025:
            rows.append(cur[:1025])
            cur = cur[1024:]
    if len(cur) > 1:
        rows.append(cur)
    with torch.no_grad():
        for r in rows:
            x = torch.tensor([r])
            pad = (-(x.shape[1] - 1)) % 128
            ids = torch.nn.functional.pad(x, (0, pad))
            h = m.trunk(ids[:, :-1])
            l = (m.final(h) @ m.p["lm_head"].t())[0, : x.shape[1] - 1]
            d = (m.mtp(h, ids[:, 1:]) @ m.p["lm_head"].t())[0, : x.shape[1] - 2].argmax(-1)  # the draft made at t for t + 2
            agree += (d == l[1:].argmax(-1)).sum().item()
            drafts += len(d)
            total += torch.nn.functional.cross_entropy(l, x[0, 1:], reduction="sum").item()
            n += x.shape[1] - 1
    return dict(file=path, documents=len(docs), tokens=n, loss=round(total / n, 4), perplexity=round(math.exp(total / n), 3), bits_per_byte=round(total / math.log(2) / nbytes, 4), mtp_agrees=round(agree / max(drafts, 1), 4))


def wilson(k, n):
    if n == 0:
        return (0, 1)
    z, p = 1.96, k / n
    c, d = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return round((c - d) / (1 + z * z / n), 3), round((c + d) / (1 + z * z / n), 3)


def prompt_and_answer(doc):
    """everything before the last in-loss answer, and that answer"""
    i = max(j for j, (t, l) in enumerate(doc) if l and t != "<|endoftext|>")
    return "".join(t for t, _ in doc[:i]), doc[i][0].replace("<|im_end|>", "")


def first_answer(doc):
    i = min(j for j, (t, l) in enumerate(doc) if l)
    return "".join(t for t, _ in doc[:i]), doc[i][0].replace("<|im_end|>", "")


def number(s):
    x = re.findall(r"-?\d+", s.replace(",", ""))
    return x[-1] if x else None


def tasks(m, tok, n, kinds=("math", "read", "tool", "tool-seen", "json")):
    out = {}
    for kind in kinds:
        docs = procedural.make(n, 4242, held=kind != "tool-seen", kind=kind.split("-")[0])
        if kind.startswith("tool"):
            qa = [first_answer(d) for d in docs]
            qa = [x for x in qa if "<tool_call>" in x[1]]
        else:
            qa = [first_answer(d) for d in docs]
            qa = [(p, a) for p, a in qa if "</think>" in p]
        got = []
        for i in range(0, len(qa), 32):
            got += decode.generate(m, tok, [p for p, _ in qa[i : i + 32]], 90)
        if kind == "math":
            ok = [number(g) == number(a) for g, (_, a) in zip(got, qa)]
        elif kind == "read":
            norm = lambda s: re.sub(r"\W+", " ", s.lower()).strip()
            # the answer's last three words count: "It is under the tree." and "The ring is under the tree." are the same; so are all ways to say that the text does not tell
            none = lambda s: "not say" in s or "not in the text" in s
            ok = [(none(g) and none(a)) or norm(g).split()[-3:] == norm(a).split()[-3:] or norm(a) in norm(g) for g, (_, a) in zip(got, qa)]
        elif kind == "json":
            def same(g, a):
                try:
                    return json.loads(g) == json.loads(a)
                except ValueError:
                    return False
            ok = [same(g, a) for g, (_, a) in zip(got, qa)]
        else:
            call = re.compile(r"\s*<tool_call>\n<function=[^>\n]+>\n(<parameter=[^>\n]+>\n.*?\n</parameter>\n)*</function>\n</tool_call>\s*", re.S)
            out[f"{kind} call well formed"] = [sum(bool(call.fullmatch(g)) for g in got), len(got), *wilson(sum(bool(call.fullmatch(g)) for g in got), len(got))]
            ok = [g.strip() == a.strip() for g, (_, a) in zip(got, qa)]
        out[{"math": "sums", "read": "reading", "tool": "tool call exact", "tool-seen": "tool-seen call exact", "json": "JSON exact"}[kind]] = [sum(ok), len(ok), *wilson(sum(ok), len(ok))]
        bad = [(p[-160:], g[:200], a[:200]) for g, (p, a), o in zip(got, qa, ok) if not o][:6]
        for b in bad:
            print("   miss", kind, b, file=sys.stderr)
    return out


if __name__ == "__main__":
    from tokenizers import Tokenizer

    m = export.read_pack(sys.argv[1])
    tok = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
    if sys.argv[2] == "text":
        for f in sys.argv[3:]:
            print(json.dumps(text_loss(m, tok, f)))
    else:
        print(json.dumps(tasks(m, tok, int(sys.argv[3]) if len(sys.argv) > 3 else 64, *([sys.argv[4].split(",")] if len(sys.argv) > 4 else []))))
