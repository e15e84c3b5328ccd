#!/usr/bin/env python3
"""Side by side with llama.cpp and mlx-lm on this machine's CPU. Needs Python 3.11, a C++ compiler and a Rust build.

    run.py setup DIR                          fetch and build the peers
    run.py files DIR --shape bonsai-8b        write model files of the true shape with random weights
    run.py check DIR --shape bonsai-8b        both engines load the same file and agree about its logits
    run.py tune DIR --shape bonsai-8b         which settings suit llama.cpp best
    run.py compare DIR --shape bonsai-8b      measure in turns, print one table
    run.py serve DIR --shape bonsai-8b        the servers under the same load, in turns
"""

import argparse
import os
from pathlib import Path

import build
import check
import compare
import files
import serve
from shapes import SHAPES

REPOSITORY = Path(__file__).resolve().parents[2]


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, shape=True):
        sub = commands.add_parser(name, help=run.__doc__.splitlines()[0])
        sub.set_defaults(run=run)
        sub.add_argument("dir", metavar="DIR", type=lambda text: Path(text).resolve(), help="where everything is kept")
        if shape:
            sub.add_argument("--shape", required=True, choices=SHAPES)
        return sub

    def engines(sub):
        sub.add_argument("-t", "--threads", type=positive, default=os.cpu_count())
        sub.add_argument("--llama-bench", type=Path, metavar="PATH", help="another build of llama.cpp's llama-bench")
        sub.add_argument("--realtime", action="store_true", help="run both engines under chrt -f 10, before other work")
        sub.add_argument("--limit", type=int, default=3600, metavar="SECONDS", help="for one run of one engine")

    def onebit(sub):
        sub.add_argument("--onebit", type=Path, default=REPOSITORY / "target/release/onebit", metavar="PATH")

    sub = command("setup", build.run, shape=False)
    sub.add_argument("-j", "--jobs", type=int, default=2, help="compilers at once")
    sub.add_argument("--no-mlx", action="store_true", help="llama.cpp only")
    sub.add_argument("--server", action="store_true", help="also llama.cpp's server, for `serve`")

    sub = command("files", files.run)
    sub.add_argument("--mlx", action="store_true", help="an MLX folder (Qwen3 shapes) instead of a GGUF file")

    sub = command("check", check.run)
    onebit(sub)
    sub.add_argument("--tokens", type=int, default=8, help="length of the prompt")

    sub = command("tune", compare.tune)
    engines(sub)
    sub.add_argument("-p", "--prompt", type=positive, default=128)
    sub.add_argument("-n", "--generate", type=positive, default=16)
    sub.add_argument("-r", "--repeat", type=positive, default=1)
    sub.add_argument("--rounds", type=positive, default=3)

    sub = command("compare", compare.run)
    engines(sub)
    onebit(sub)
    sub.add_argument("--peer", choices=["llama", "mlx"], default="llama")
    sub.add_argument("-p", "--prompt", type=positive, default=512)
    sub.add_argument("-n", "--generate", type=positive, default=64)
    sub.add_argument("-r", "--repeat", type=positive, default=3, help="measurements of one engine in one round")
    sub.add_argument("--rounds", type=positive, default=3)
    sub.add_argument("--flash-attention", choices=["on", "off"], default="on", help="of llama.cpp")
    sub.add_argument("--onebit-tier", metavar="TIER", help="kernels of onebit, such as avx2 (ONEBIT_CPU)")
    sub.add_argument("--out", type=Path, metavar="FILE", help="the table's numbers as JSON")

    sub = command("serve", serve.run)
    onebit(sub)
    sub.add_argument("-t", "--threads", type=positive, default=os.cpu_count())
    sub.add_argument("--llama-server", type=Path, metavar="PATH", help="another build of llama.cpp's llama-server")
    sub.add_argument("--xtask", type=Path, default=REPOSITORY / "target/release/xtask", metavar="PATH")
    sub.add_argument("--clients", type=positive, default=8, help="clients at once, beside one alone")
    sub.add_argument("--requests", type=positive, default=2, help="requests of each client")
    sub.add_argument("--words", type=positive, default=64, help="words of a prompt")
    sub.add_argument("--tokens", type=positive, default=64, help="tokens of an answer")
    sub.add_argument("--rounds", type=positive, default=2)
    sub.add_argument("--realtime", action="store_true", help="run both servers under chrt -f 10, before other work")
    sub.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")

    args = parser.parse_args()
    args.run(args)


main()
