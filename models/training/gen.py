"""Teacher text: runs teacher.Generator on this rank's GPU for a number of seconds and writes student-token documents.

    python gen.py --teacher T.gguf --out DIR --seconds 200 --seed 1 [--batch 4096] [--ctx 512]     (one process per GPU: RANK in the environment)
"""
import argparse
import multiprocessing
import os
import time

import numpy as np
import torch

import prompts
import teacher as T
import tok

BAD = ["```", "Hugging", "Smol", "http", "www", "\\", "$", "{", "}", "<", ">", "=", "|", "_", "~", "^", "def ", "import ", "@", "[", "]", "//", "¶", "�"]


def banned(meta, tt):
    """teacher tokens that must not occur in a kept document: code, markup, foreign scripts, the teacher's own name"""
    bad = np.zeros(49152 + 2, bool)
    for i, t in enumerate(meta["tokenizer.ggml.tokens"]):
        if meta["tokenizer.ggml.token_type"][i] == 3:
            continue
        s = tt.decode([i])
        if any(b in s for b in BAD) or any(ord(c) > 127 and c not in "’‘“”–—…éèêçñüöäàáíóúâîôß°½¼×" for c in s) and "�" not in s or any(b in s for b in ("#",)):
            bad[i] = True
    return bad


def stop_masks(meta):
    """[3, V]: tokens that end a sentence; tokens after which a stop ends none (numbers, initials, titles); closing quotes"""
    toks = meta["tokenizer.ggml.tokens"]
    end = [t.endswith((".", "!", "?", '."', '!"', '?"', ".)")) and "..." not in t for t in toks]
    w = [t.replace("Ġ", "") for t in toks]
    abbr = [x.isdigit() or (len(x) == 1 and x.isupper()) or x in ("Dr", "Mr", "Mrs", "Ms", "St", "Prof", "etc", "vs", "No", "Jr", "Sr", "approx") for x in w]
    quote = [t[0] in "\"')”’" for t in toks]
    return torch.tensor([end, abbr, quote])


OPENINGS = ("As an AI", "As a digital", "I'm an AI", "I am an AI", "As a language model", "I'm sorry, but", "I apologize", "I'm a digital", "I'm a language", "I'm just an AI", "I don't have personal", "I'm a computer")


def ext_table(meta, student):
    table, count = tok.pieces(meta, student)
    sp = {t["content"]: t["id"] for t in student["added_tokens"]}
    nl = student["model"]["vocab"]["Ċ"]
    think = [nl, sp["<think>"], nl, nl, sp["</think>"], nl, nl]
    w = max(table.shape[1], len(think))
    out = np.zeros((49152 + 2, w), np.int32)
    out[:49152, : table.shape[1]] = table
    out[prompts.THINK, : len(think)] = think
    return out, np.concatenate([count, [0, len(think)]]).astype(np.int32), sp


def to_docs(rec, ids, p, sampled, start, doc, who, pool_text, tables, max_same=3):
    """step-major arrays [S, B(, K)] -> dict of flat student arrays and document offsets (numpy)"""
    table, count, sp, bad, words = tables
    S, B = rec.shape
    order = np.arange(S * B).reshape(S, B).T.reshape(-1)  # slot-major
    rec, sampled, start, doc = (x.reshape(-1)[order] for x in (rec, sampled, start, doc))
    start = start.copy()
    start[::S] = True
    begin = np.flatnonzero(start)
    end = np.append(begin[1:], len(rec))
    isbad = np.add.reduceat(bad[rec].astype(np.int64), begin) > 0
    seen, keep, stats = {}, [], dict(docs=len(begin), bad=int(isbad.sum()), self=0, short=0, same=0, loops=0, open=0, cut=0)
    end = end.copy()
    who = who.reshape(-1)[order]
    stop = sampled & (rec == T.IM_END) & (who == 0)  # the end of a sampled assistant turn
    for d, (b, e) in enumerate(zip(begin, end)):
        if isbad[d]:
            continue
        if rec[e - 1] not in (T.IM_END, T.EOT) or (rec[e - 1] == T.IM_END and not stop[e - 1]):
            at = np.flatnonzero(stop[b:e])  # unfinished: back to the last finished assistant turn, if any
            if len(at) == 0:
                if d % 8:
                    stats["open"] += 1
                    continue
            else:
                stats["cut"] += 1
                e = end[d] = b + at[-1] + 1
        if sampled[b:e].sum() < 4:
            stats["short"] += 1
            continue
        x = rec[b:e]
        s = x[sampled[b:e]]
        if "".join(words[i] for i in s[:8]).startswith(OPENINGS):
            stats["self"] += 1
            continue
        key = s[:20].tobytes()
        c = seen.get(key, 0)
        if c >= max_same:
            stats["same"] += 1
            continue
        seen[key] = c + 1
        if len(s) > 40:
            s = s.astype(np.int64)
            h3, h2 = s[:-2] * 1000003 + s[1:-1] * 10007 + s[2:], s[:-1] * 1000003 + s[1:]
            if len(np.unique(h3)) < 0.86 * len(h3) or len(np.unique(h2)) < 0.70 * len(h2) or len(np.unique(s)) < 0.22 * len(s):
                stats["loops"] += 1
                continue
        keep.append(d)
    keep = np.array(keep, np.int64)
    stats["kept"] = len(keep)
    # source token index per kept document, then expansion to pieces
    lens = (end - begin)[keep]
    src = np.repeat(begin[keep] - np.concatenate([[0], np.cumsum(lens)[:-1]]), lens) + np.arange(lens.sum())
    r = rec[src].copy()
    text_doc = np.repeat(pool_text[doc[begin[keep]]], lens)
    r[text_doc & (r == T.IM_END)] = T.EOT
    cnt = count[r]
    last = np.cumsum(lens) - 1
    closed = (r[last] == T.IM_END)
    extra = np.zeros(len(r), np.int64)
    extra[last] = closed  # + <|endoftext|>
    n = cnt + extra
    at = np.cumsum(n) - n
    total = int(n.sum())
    own = np.repeat(np.arange(len(r)), n)
    off = np.arange(total) - at[own]
    is_eot = off >= cnt[own]
    t = np.where(is_eot, sp["<|endoftext|>"], table[r[own], np.minimum(off, table.shape[1] - 1)])
    smp = sampled[src][own]
    weight = smp.astype(np.uint8)
    soft = np.where(smp & (off == 0) & ~is_eot, np.arange(len(r))[own], -1)
    soft[np.isin(r[own], [T.EOT]) & text_doc[own]] = -1
    nd = np.add.reduceat(n, np.cumsum(lens) - lens)
    # compact the soft rows to those used
    used = np.unique(soft[soft >= 0])
    remap = np.full(len(r), -1, np.int64)
    remap[used] = np.arange(len(used))
    soft = np.where(soft >= 0, remap[np.maximum(soft, 0)], -1)
    rows = order[src[used]]
    K = ids.shape[-1]
    sid = table[ids.reshape(-1, K)[rows], 0].astype(np.int16)
    sp_ = p.reshape(-1, K)[rows]
    # tokens that the student does not have as a special (other teacher specials) have no first piece: give them no mass
    return dict(tok=t.astype(np.int16), weight=weight, soft=soft.astype(np.int32), sid=sid, sp=sp_.astype(np.float16), len=nd.astype(np.int64)), stats


SHARED = {}


def _slots(r):
    x = SHARED
    return to_docs(*(v[:, r[0] : r[1]] for v in x["arrays"]), x["pool_text"], x["tables"])


def convert(arrays, pool_text, tables, procs):
    """to_docs over ranges of slots in forked processes (numpy only), joined"""
    B = arrays[0].shape[1]
    cuts = [(B * i // procs, B * (i + 1) // procs) for i in range(procs)]
    SHARED.update(arrays=arrays, pool_text=pool_text, tables=tables)
    try:
        if procs == 1:
            raise OSError("one process")
        with multiprocessing.get_context("fork").Pool(procs) as pool:
            res = pool.map(_slots, cuts)
    except Exception as e:  # noqa: BLE001
        print("post-processing in one process:", e, flush=True)
        res = [_slots(c) for c in cuts]
    base = 0
    for d, _ in res:
        d["soft"] = np.where(d["soft"] >= 0, d["soft"] + base, d["soft"]).astype(np.int32)
        base += len(d["sid"])
    return {k: np.concatenate([d[k] for d, _ in res]) for k in res[0][0]}, {k: sum(s[k] for _, s in res) for k in res[0][1]}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--teacher", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--seconds", type=float, default=200)
    a.add_argument("--steps", type=int, default=0)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--batch", type=int, default=4096)
    a.add_argument("--ctx", type=int, default=320)
    a.add_argument("--pool", type=int, default=60000)
    a.add_argument("--procs", type=int, default=max(1, (os.cpu_count() or 1) // 5))
    a.add_argument("--max-steps", type=int, default=14000)
    a.add_argument("--no-triton", action="store_true")
    a = a.parse_args()
    rank = int(os.environ.get("RANK", 0))
    cuda = torch.cuda.is_available()
    dev, dt = (f"cuda:{rank}", torch.bfloat16) if cuda else ("cpu", torch.float32)
    if cuda:
        torch.cuda.set_device(rank)
    t0 = time.time()
    g, W = T.load(a.teacher, dev, dt)
    tt = tok.teacher_tokenizer(g.meta)
    tables = (*ext_table(g.meta, tok.build(g.meta)), banned(g.meta, tt), [t.replace("Ġ", " ") for t in g.meta["tokenizer.ggml.tokens"]] + ["", ""])
    seed = a.seed * 1000 + rank
    pn = prompts.build(tt, a.pool, seed)
    pool_text = (pn["rec"][:, 0] == prompts.NOTHING) & (pn["feed"][:, 0] == T.EOT)
    to = lambda d: {k: torch.from_numpy(v).to(dev) for k, v in d.items()}
    gen = T.Generator(W, to(pn), to(prompts.headers(tt)), dev, dt, a.batch, a.ctx, use_triton=not a.no_triton, compile=cuda, seed=seed,
                      newline=torch.tensor([t.startswith("Ċ") for t in g.meta["tokenizer.ggml.tokens"]]), one=g.meta["tokenizer.ggml.tokens"].index("1"), stops=stop_masks(g.meta))
    print(f"[{rank}] ready after {time.time() - t0:.0f} s", flush=True)
    if cuda and not a.no_triton:  # the Triton attention against the plain one, on random numbers
        B = 64
        q, K, V = torch.randn(B, T.NH, T.HD, device=dev, dtype=dt), *(torch.randn(B, T.NKV, a.ctx, T.HD, device=dev, dtype=dt) for _ in range(2))
        pos = torch.randint(0, a.ctx, (B,), device=dev)
        e = (T.attn_triton(q, K, V, pos).float() - T.attn_torch(q, K, V, pos).float()).norm() / T.attn_torch(q, K, V, pos).float().norm()
        print(f"[{rank}] decode attention, triton against torch: rel {e.item():.1e}", flush=True)
        if not e < 2e-2:
            gen.attn = T.attn_torch
            print(f"[{rank}] FALLING BACK to torch attention", flush=True)
    if cuda:
        gen.capture()
        print(f"[{rank}] graph captured after {time.time() - t0:.0f} s", flush=True)
    S = a.steps or a.max_steps
    rec = torch.zeros(S, a.batch, dtype=torch.int32, device=dev)
    ids = torch.zeros(S, a.batch, gen.K, dtype=torch.int16, device=dev)
    p = torch.zeros(S, a.batch, gen.K, dtype=torch.float16, device=dev)
    sampled, start = (torch.zeros(S, a.batch, dtype=torch.bool, device=dev) for _ in range(2))
    doc = torch.zeros(S, a.batch, dtype=torch.int32, device=dev)
    who = torch.zeros(S, a.batch, dtype=torch.int8, device=dev)
    t1 = time.time()
    n = 0
    while n < S and (a.steps or time.time() - t1 < a.seconds):
        gen.run()
        rec[n], ids[n], p[n] = gen.o_rec, gen.o_ids, gen.o_p
        sampled[n], start[n], doc[n], who[n] = gen.o_sampled, gen.o_start, gen.o_doc, gen.o_who
        n += 1
        if n % 50 == 0 and cuda:
            torch.cuda.synchronize()
            if n % 1000 == 0:
                print(f"[{rank}] step {n} {n * a.batch / (time.time() - t1):.0f} tokens/s", flush=True)
    if cuda:
        torch.cuda.synchronize()
    t2 = time.time()
    print(f"[{rank}] {n} steps, {n * a.batch / 1e6:.1f} M tokens, {n * a.batch / (t2 - t1):.0f} tokens/s", flush=True)
    c = lambda x: x[:n].cpu().numpy()
    docs, stats = convert((c(rec), c(ids).view(np.uint16), c(p), c(sampled), c(start), c(doc), c(who)), pool_text, tables, a.procs)
    docs = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in docs.items()}
    os.makedirs(a.out, exist_ok=True)
    torch.save(docs, f"{a.out}/teacher{rank}.tmp")
    os.rename(f"{a.out}/teacher{rank}.tmp", f"{a.out}/teacher{rank}.pt")
    print(f"[{rank}] {stats}, student tokens {len(docs['tok']) / 1e6:.1f} M, in loss {docs['weight'].sum().item() / 1e6:.1f} M, soft {len(docs['sid']) / 1e6:.1f} M, post {time.time() - t2:.0f} s", flush=True)


if __name__ == "__main__":
    main()
