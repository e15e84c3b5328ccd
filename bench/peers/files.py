"""Writes model files of a published shape."""

import os
import shutil
import sys

import gguf_file
import mlx_pack
from shapes import SHAPES


def gguf_path(args):
    return args.dir / f"{args.shape}.gguf"


def mlx_path(args):
    return args.dir / f"{args.shape}-mlx"


def run(args):
    """Writes a model file of the true shape with random weights."""
    os.nice(19)
    args.dir.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[args.shape]
    needed = gguf_file.file_size(shape)
    # An MLX file is larger, and the disk should not end up full.
    if shutil.disk_usage(args.dir).free < 2 * needed:
        sys.exit(f"{args.dir} has too little room for {needed / 1e9:.1f} GB")
    if args.mlx:
        if shape.hybrid:
            sys.exit("MLX folders are written for the Qwen3 shapes only")
        mlx_pack.write(shape, mlx_path(args))
        print(mlx_path(args))
    else:
        gguf_file.write(shape, gguf_path(args))
        print(gguf_path(args))
