"""Measures mlx-lm, in its own process: prefill and decode speed on one MLX folder, as one JSON object."""

import argparse
import json
import random
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model


def answer(model, tokens, count):
    """Seconds to the first token, and seconds from there to the last of `count` more."""
    stream = mx.default_stream(mx.cpu)
    start = time.perf_counter()
    first = None
    for _ in generate_step(mx.array(tokens), model, stream, max_tokens=count + 1):
        first = first or time.perf_counter()
    last = time.perf_counter()
    # One more step is under way.
    mx.synchronize(stream)
    return first - start, last - first


def check(model):
    if not mx.all(mx.isfinite(model(mx.array([[1, 2]])))).item():
        raise SystemExit("the logits are not finite")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("-p", type=int, default=16)
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("-r", type=int, default=1)
    args = parser.parse_args()

    mx.set_default_device(mx.cpu)
    model, config = load_model(Path(args.folder))
    # On a CPU, MLX multiplies f32 more than ten times faster than f16.
    model.set_dtype(mx.float32)
    rng = random.Random(1)
    some = lambda count: [rng.randrange(config["vocab_size"]) for _ in range(count)]
    check(model)
    answer(model, some(2), 1)
    prefill, decode = [], []
    for _ in range(args.r):
        # Decode starts at an empty cache, as at the other engines.
        prefill.append(args.p / answer(model, some(args.p), 0)[0])
        decode.append(args.n / answer(model, some(1), args.n)[1])
    print(json.dumps({"pp": prefill, "tg": decode}))


main()
