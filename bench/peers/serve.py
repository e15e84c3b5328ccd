"""The same load against onebit's server and llama.cpp's, in turns, on the same file."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median

from files import gguf_path

REPOSITORY = Path(__file__).resolve().parents[2]

# How long a server may take until it answers.
PATIENCE = 300


def run(args):
    """Serves in turns, one client and several, prints one table."""
    rounds = []
    for i in range(args.rounds):
        results = {}
        # Each server goes first as often as second.
        for name, command in [("llama.cpp", llama(args)), ("onebit", onebit(args))][:: 1 if i % 2 == 0 else -1]:
            print(f"round {i + 1} of {args.rounds}: {name}", file=sys.stderr)
            results[name] = serve(args, command)
        rounds.append(results)
    print(table(args, rounds))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"shape": args.shape, "threads": args.threads, "rounds": rounds}, indent=2) + "\n")


def context(args):
    """Tokens for a conversation: words are up to two tokens each in these vocabularies, and the template comes on top."""
    return 2 * args.words + args.tokens + 128


def onebit(args):
    return lambda port: [
        args.onebit, "serve", gguf_path(args), "--backend", "cpu", "--threads", args.threads,
        "--port", port, "--ctx", context(args), "--parallel", args.clients,
    ]  # fmt: skip


def llama(args):
    server = args.llama_server or args.dir / "build/bin/llama-server"
    return lambda port: [
        server, "-m", gguf_path(args), "-t", args.threads, "-ngl", 0, "--port", port, "--host", "127.0.0.1",
        "-np", args.clients, "-c", context(args) * args.clients, "-ctk", "f16", "-ctv", "f16", "-fa", "on",
    ]  # fmt: skip


def serve(args, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(word) for word in command(port)]
    if args.realtime:
        words = ["chrt", "-f", "10", *words]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait(server, url, log)
            # Seeds of their own: no prompt comes twice. The first one is a warm-up.
            load(args, url, 1, 2, seed=1)
            return {str(n): load(args, url, n, args.requests * n, seed=1000 * n) for n in [1, args.clients]}
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def wait(server, url, log):
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    log.seek(0)
    sys.exit(f"the server does not answer:\n{log.read()[-2000:].decode(errors='replace')}")


def load(args, url, clients, requests, seed):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "load.json"
        command = [args.xtask, "load", "bench", url, "--clients", clients, "--requests", requests]
        command += ["--words", args.words, "--tokens", args.tokens, "--seed", seed, "--out", out]
        if args.realtime:
            # Above the servers, whose threads would keep the clients from reading.
            command = ["chrt", "-f", 11, *command]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
        return json.loads(out.read_text())


def table(args, rounds):
    lines = [f"{args.shape}, {args.words} words in, {args.tokens} tokens out, {args.threads} threads"]
    lines.append(f"{'server':<12}{'clients':>8}{'tokens/s':>10}{'first token p50, p99 (s)':>28}{'between p50, p99 (ms)':>26}")
    speed = {}
    for name in ["llama.cpp", "onebit"]:
        for clients in [1, args.clients]:
            results = [r[name][str(clients)] for r in rounds]
            middle = lambda *path: median(pick(result, path) for result in results)
            speed[name, clients] = middle("completion_tok_s")
            first = f"{middle('first_token_ms', 'p50') / 1000:.2f}, {middle('first_token_ms', 'p99') / 1000:.2f}"
            between = f"{middle('between_tokens_ms', 'p50'):.0f}, {middle('between_tokens_ms', 'p99'):.0f}"
            lines.append(f"{name:<12}{clients:>8}{speed[name, clients]:>10.2f}{first:>28}{between:>26}")
    for clients in [1, args.clients]:
        lines.append(f"onebit / llama.cpp, {clients} at once: {speed['onebit', clients] / speed['llama.cpp', clients]:.2f}")
    for name in ["llama.cpp", "onebit"]:
        lines.append(f"{name}, {args.clients} at once / one: {speed[name, args.clients] / speed[name, 1]:.2f}")
    return "\n".join(lines)


def pick(result, path):
    for key in path:
        result = result[key]
    return result
