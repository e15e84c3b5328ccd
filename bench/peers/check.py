"""Holds the logits of both engines against each other."""

import json
import math
import random
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

from files import gguf_path
from shapes import SHAPES


def run(args):
    """Both engines load the same file and agree about its logits."""
    rng = random.Random(1)
    tokens = [str(rng.randrange(SHAPES[args.shape].vocab)) for _ in range(args.tokens)]
    model = gguf_path(args)
    subprocess.run([args.onebit, "info", model], check=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [args.dir / "build/logits", model, out / "llama", *tokens]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        theirs = array("f", (out / "llama").read_bytes())
        rows = {}
        for kind in ["auto", "f32"]:
            command = [args.onebit, "logits", model, "--backend", "cpu", "--activations", kind]
            subprocess.run([*command, "--tokens", ",".join(tokens), "--out", out / kind], check=True)
            rows[kind] = last_row(out / kind, len(theirs))
    for kind, ours in rows.items():
        if not all(map(math.isfinite, ours)):
            sys.exit("onebit's logits are not finite")
        print(f"llama.cpp and onebit, activations {kind}: {similarity(theirs, ours)}")
    print(f"onebit with both kinds of activations: {similarity(rows['auto'], rows['f32'])}")


def last_row(path, vocab):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8 : 8 + size])["logits"]["data_offsets"]
    return array("f", data[8 + size + begin : 8 + size + end][-4 * vocab :])


def similarity(a, b):
    dot = lambda x, y: math.fsum(p * q for p, q in zip(x, y))
    best = lambda x: max(range(len(x)), key=x.__getitem__)
    cosine = dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))
    return f"cosine {cosine:.4f}, best tokens {best(a)} and {best(b)}"
