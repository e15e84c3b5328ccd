"""Procedural documents as student tokens.   python proc_docs.py TOKENIZER_DIR OUT.pt DOCS SEED [PROCESSES]"""
import sys
from multiprocessing import Pool

import numpy as np

import procedural


def work(a):
    path, n, seed = a
    from tokenizers import Tokenizer

    t = Tokenizer.from_file(path + "/tokenizer.json")
    toks, ws, lens = [], [], []
    for d in procedural.make(n, seed):
        k = 0
        for e, (_, loss) in zip(t.encode_batch([s for s, _ in d]), d):
            toks.append(np.array(e.ids, np.int16))
            ws.append(np.full(len(e.ids), loss, np.uint8))
            k += len(e.ids)
        lens.append(k)
    return np.concatenate(toks), np.concatenate(ws), np.array(lens, np.int64)


if __name__ == "__main__":
    import torch

    path, out, n, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    procs = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    jobs = [(path, n // (procs * 4) + 1, seed * 100000 + i) for i in range(procs * 4)]
    if procs > 1:
        with Pool(procs) as p:
            res = p.map(work, jobs)
    else:
        res = [work(j) for j in jobs]
    tok, w, ln = (np.concatenate(x) for x in zip(*res))
    torch.save(dict(tok=torch.from_numpy(tok), weight=torch.from_numpy(w), soft=torch.full((len(tok),), -1, dtype=torch.int32), len=torch.from_numpy(ln)), out)
    print(f"procedural: {len(ln)} documents, {len(tok) / 1e6:.1f} M tokens, in loss {w.sum() / 1e6:.1f} M")
