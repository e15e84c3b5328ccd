"""Writes OUT/torch.txt and OUT/mlx.txt: lines of `seed length index value` of the noise that torch and mlx draw.

    python3 reference/gen_noise.py testdata/noise
"""

import pathlib
import sys

import mlx.core as mx
import numpy as np
import torch

SEEDS = [0, 42, (1 << 40) + 7, (1 << 64) - 1]
# Every length around the blocks of 16, and the latent pictures of 64x96, 512x512 and 1024x1024.
LENGTHS = [*range(1, 50), 100, 127, 128 * 24, 128 * 1024, 128 * 4096]


def draw_torch(seed, length):
    generator = torch.Generator("cpu")
    generator.manual_seed(seed)
    return torch.randn(length, generator=generator, dtype=torch.float32).numpy()


def draw_mlx(seed, length):
    return np.array(mx.random.normal((length,), key=mx.random.key(seed)))


def places(values):
    """All of a short draw; of a long one the ends, the middle and the extremes."""
    n = len(values)
    if n <= 9:
        return range(n)
    chosen = {0, 1, 7, 8, n // 2, n - 17, n - 16, n - 9, n - 8, n - 1, int(values.argmin()), int(values.argmax())}
    return sorted(i for i in chosen if i >= 0)


def main(out):
    for name, draw, version in [("torch", draw_torch, torch.__version__), ("mlx", draw_mlx, mx.__version__)]:
        lines = [f"# {name} {version}: seed length index value"]
        for seed in SEEDS:
            for length in LENGTHS if seed == SEEDS[1] else LENGTHS[:20] + LENGTHS[-3:-1]:
                values = draw(seed, length)
                lines += [f"{seed} {length} {i} {values[i]:.9g}" for i in places(values)]
        (pathlib.Path(out) / f"{name}.txt").write_text("\n".join(lines) + "\n")


main(sys.argv[1])
