"""The answers of held-out texts as a student predicts them, by `onebit logits` with its default settings. `onebit eval --text` counts
whole documents only; the figures for those are the same here. Needs numpy and tokenizers.

    python score_student.py ONEBIT PACK FILE...      ONEBIT: the program; one JSON object a line
"""
import json
import subprocess
import sys
import tempfile

import numpy as np
from tokenizers import Tokenizer

import heldout_text

WINDOW = 2048


def logits(path):
    """The tensor `logits` of a safetensors file [T, vocab]"""
    with open(path, "rb") as f:
        raw = f.read()
    start = 8 + int.from_bytes(raw[:8], "little")
    t = json.loads(raw[8:start])["logits"]
    if t["dtype"] != "F32":
        sys.exit(f"{path}: logits are {t['dtype']}, wanted F32; is the program of this repository?")
    a, b = t["data_offsets"]
    return np.frombuffer(raw[start + a : start + b], "<f4").reshape(t["shape"])


def scorer(program, pack):
    def score(sequences, targets):
        losses, hits = [], []
        with tempfile.TemporaryDirectory() as folder:
            out = folder + "/logits.safetensors"
            for ids, wanted in zip(sequences, targets):
                done = subprocess.run([program, "logits", pack, "--tokens", ",".join(map(str, ids)), "--out", out], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{program} logits {pack} failed: {done.stderr.strip()}")
                x = logits(out).astype(np.float64)
                top, own = x.max(-1), x[np.arange(len(wanted)), wanted]
                losses.append(np.log(np.exp(x - top[:, None]).sum(-1)) + top - own)
                hits.append(x.argmax(-1) == wanted)
        return np.concatenate(losses), np.concatenate(hits)

    return score


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    program, pack, *files = sys.argv[1:]
    tokenizer = Tokenizer.from_file(pack + "/tokenizer.json")
    for path in files:
        heldout_text.report(scorer(program, pack), tokenizer, path, "as written", heldout_text.read(path), WINDOW)


if __name__ == "__main__":
    main()
