"""Cuts, scores and counts a held-out text as `onebit eval --text` does (docs/eval.md): every document from an empty context with
<|endoftext|> before and after it, windows without overlap, 95% intervals over documents, or windows where there are few documents.
A text with assistant turns is counted a second time for its answers alone: the words of each assistant turn after the empty think
block, up to and with <|im_end|>."""
import json
import math
import re
import sys
import time

import numpy as np

SEPARATOR = "<|endoftext|>"
THINK = "<think>\n\n</think>\n\n"
ANSWER = re.compile(r"<\|im_start\|>assistant\n(?:" + re.escape(THINK) + r")?(.*?(?:<\|im_end\|>|\Z))", re.S)
ROWS = 2048  # tokens that a model is given at once, more if a window has more
MANY_DOCUMENTS, LEAST_UNITS = 20, 5  # as onebit eval chooses what an interval takes as one observation


def documents(text, tokenizer):
    """-> of each document its ids, and which of them belong to an answer"""
    mark = tokenizer.token_to_id(SEPARATOR)
    pieces = text.split(SEPARATOR)
    for i, piece in enumerate(pieces):
        piece = piece.strip("\r\n")
        if not piece.strip():
            continue
        e = tokenizer.encode(piece)
        spans = [m.span(1) for m in ANSWER.finditer(piece)]
        end = [mark] if i + 1 < len(pieces) else []
        inside = [any(a <= at < b for a, b in spans) for at, _ in e.offsets]
        yield np.array([mark, *e.ids, *end]), np.array([False, *inside, *(False for _ in end)])


def token_bytes(tokenizer):
    """Bytes of text that each token stands for: in a byte-level vocabulary one for every character, none for a separator"""
    size = np.array([len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())])
    size[tokenizer.token_to_id(SEPARATOR)] = 0
    return size


def student_t(degrees):
    """The 97.5% point, by the expansion in 1/degrees that onebit eval uses (within 0.4% from 4 degrees on)"""
    z, v = 1.959964, degrees
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


def figures(unit, loss, hit, size):
    """unit: the observation that each token belongs to. The interval is that of a ratio of sums."""
    mean = loss.mean()
    _, unit = np.unique(unit, return_inverse=True)
    n, tokens = unit.max() + 1, np.bincount(unit)
    out = dict(tokens=len(loss), bytes=int(size.sum()), loss=round(mean, 4), perplexity=round(math.exp(mean), 3))
    if n >= LEAST_UNITS:
        variance = n / (n - 1) * np.square(np.bincount(unit, loss) - mean * tokens).sum() / len(loss) ** 2
        half = student_t(n - 1) * math.sqrt(variance)
        out["perplexity_interval"] = [round(math.exp(mean - half), 3), round(math.exp(mean + half), 3)]
    return out | dict(bits_per_byte=round(loss.sum() / math.log(2) / size.sum(), 4), top1=round(hit.mean(), 4))


def groups(spans):
    """Windows together as long as they have at most ROWS tokens"""
    out, rows = [], 0
    for span in spans:
        n = span[2] - span[1]
        if not out or rows + n > ROWS:
            out.append([])
            rows = 0
        out[-1].append(span)
        rows += n
    return out


def score_text(score, tokenizer, text, window):
    """score(sequences, targets) -> per token of the concatenated targets: -ln p (f64), whether it was the likeliest"""
    docs = list(documents(text, tokenizer))
    spans = [(d, s, min(s + window, len(ids) - 1)) for d, (ids, _) in enumerate(docs) for s in range(0, len(ids) - 1, window)]
    if not spans:
        sys.exit("the text has no token to predict; give a text of at least a few words")
    parts, batches = [], groups(spans)
    for i, batch in enumerate(batches):
        print(f"\r{i + 1}/{len(batches)} ", end="", file=sys.stderr, flush=True)
        parts.append(score([docs[d][0][a:b] for d, a, b in batch], [docs[d][0][a + 1 : b + 1] for d, a, b in batch]))
    print("\r", end="", file=sys.stderr)
    loss, hit = (np.concatenate(x) for x in zip(*parts))
    if not np.isfinite(loss).all():
        sys.exit(f"the loss of token {np.flatnonzero(~np.isfinite(loss))[0]} of the text is no number; the weights are damaged")
    targets = lambda part: np.concatenate([part(docs[d])[a + 1 : b + 1] for d, a, b in spans])
    size, answer = token_bytes(tokenizer)[targets(lambda doc: doc[0])], targets(lambda doc: doc[1])
    unit = np.concatenate([np.full(b - a, d if len(docs) >= MANY_DOCUMENTS else i) for i, (d, a, b) in enumerate(spans)])
    out = dict(documents=len(docs), windows=len(spans), all=figures(unit, loss, hit, size))
    if answer.any():
        out["answers"] = figures(*(x[answer] for x in (unit, loss, hit, size)))
    return out


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def report(score, tokenizer, path, way, text, window):
    """Prints one JSON object on a line"""
    start = time.time()
    out = score_text(score, tokenizer, text, window)
    print(json.dumps(dict(file=path, text=way, window=window, **out, seconds=round(time.time() - start))), flush=True)
