"""Runs the engines in turns, on the same file, and sets their speeds side by side."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from files import gguf_path, mlx_path

HERE = Path(__file__).resolve().parent

# Share of the cores that other programs may take from a measurement.
QUIET = 0.05

# What `tune` tries on llama.cpp, one change at a time: a name, arguments and environment.
SETTINGS = [
    ("flash attention", ["-fa", "on"], {}),
    ("no flash attention", ["-fa", "off"], {}),
    ("batches of 128", ["-fa", "on", "-ub", "128"], {}),
    ("batches of 32", ["-fa", "on", "-ub", "32"], {}),
    ("file read, not mapped", ["-fa", "on", "-lm", "none"], {}),
    ("threads never sleep", ["-fa", "on"], {"OMP_WAIT_POLICY": "active"}),
    ("threads bound to cores", ["-fa", "on"], {"OMP_PROC_BIND": "true"}),
]


def tune(args):
    """Which settings suit llama.cpp best."""
    runs = {name: [] for name, _, _ in SETTINGS}
    for i in range(args.rounds):
        for name, arguments, environment in SETTINGS:
            print(f"round {i + 1} of {args.rounds}: {name}", file=sys.stderr)
            runs[name].append(llama(args, arguments, environment))
    print(f"{'llama.cpp setting':<26}{'prefill tok/s':>24}{'decode tok/s':>24}{'peak MiB':>10}{'others':>9}")
    for name, results in runs.items():
        cells = [cell(spread([median(r[key]) for r in results])) for key in ["pp", "tg"]]
        peak = max(r["peak"] for r in results) / 2**20
        others = max(r["others"] for r in results)
        print(f"{name:<26}{cells[0]:>24}{cells[1]:>24}{peak:>10.0f}{others:>9.0%}")


def run(args):
    """Measures in turns, prints one table."""
    ours = lambda: onebit(args)
    theirs = (lambda: llama(args, ["-fa", args.flash_attention])) if args.peer == "llama" else (lambda: mlx(args))
    rounds = []
    for i in range(args.rounds):
        # Each engine goes first as often as second.
        results = {}
        for engine, measure in [("peer", theirs), ("onebit", ours)][:: 1 if i % 2 == 0 else -1]:
            print(f"round {i + 1} of {args.rounds}: {engine}", file=sys.stderr)
            results[engine] = measure()
        rounds.append(results)
    report = summary(args, rounds)
    print(table(report))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report | {"rounds": rounds}, indent=2) + "\n")


def llama(args, arguments, environment={}):
    bench = args.llama_bench or args.dir / "build/bin/llama-bench"
    command = [bench, "-m", gguf_path(args), "-t", args.threads, "-p", args.prompt, "-n", args.generate]
    command += ["-r", args.repeat, "-ngl", 0, "-ctk", "f16", "-ctv", "f16", "-o", "json", *arguments]
    text, held = measured(args, command, environment)
    tests = json.loads(text)
    samples = lambda key: next((t["samples_ts"] for t in tests if t[key] > 0), [])
    version = args.dir / "llama.cpp.version"
    name = "llama.cpp " + ("of another build" if args.llama_bench else version.read_text().strip())
    return {"name": name, "pp": samples("n_prompt"), "tg": samples("n_gen"), **held}


def mlx(args):
    command = [args.dir / "venv/bin/python", HERE / "mlx_bench.py", mlx_path(args)]
    command += ["-p", args.prompt, "-n", args.generate, "-r", args.repeat]
    text, held = measured(args, on_cores(args.threads, command), {})
    return json.loads(text) | held


def on_cores(threads, command):
    """MLX has no option for its threads."""
    if threads >= len(os.sched_getaffinity(0)):
        return command
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    return ["taskset", "-c", cores, *command]


def onebit(args):
    model = gguf_path(args) if args.peer == "llama" else mlx_path(args)
    command = [args.onebit, "bench", model, "--backend", "cpu", "--threads", args.threads]
    command += ["-p", args.prompt, "-n", args.generate, "-r", args.repeat, "--json"]
    environment = {"ONEBIT_CPU": args.onebit_tier} if args.onebit_tier else {}
    text, held = measured(args, command, environment)
    report = json.loads(text)
    samples = lambda key: [report[key][at] for at in ["min", "median", "max"]]
    return {
        "device": report["device"],
        "activations": report["activations"],
        "kv": report["kv"],
        "pp": samples("pp"),
        "tg": samples("tg"),
        "bandwidth_gbs": report["bandwidth_gbs"],
        "bytes_per_token": report["bytes_per_token"],
        **held,
    }


def measured(args, command, environment):
    """Output of a command; the most memory that it held, mapped files included; what else kept the cores busy."""
    command = [str(part) for part in command]
    if args.realtime:
        command = ["chrt", "-f", "10", *command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        began, before = time.monotonic(), busy_seconds()
        child = subprocess.Popen(command, stdout=out, stderr=log, env=os.environ | environment)
        timer = threading.Timer(args.limit, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        others = busy_seconds() - before - usage.ru_utime - usage.ru_stime
        others /= (time.monotonic() - began) * os.cpu_count()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            log.seek(0)
            reason = "took too long" if child.returncode == -signal.SIGKILL else log.read().decode(errors="replace")
            sys.exit(f"{' '.join(command)}: {reason}")
        out.seek(0)
        return out.read().decode(), {"peak": usage.ru_maxrss * 1024, "others": max(others, 0.0)}


def busy_seconds():
    """Time that all cores together were busy since the start, with what a hypervisor took."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values)}


def summary(args, rounds):
    engines = {}
    for engine in ["peer", "onebit"]:
        runs = [r[engine] for r in rounds]
        engines[engine] = {
            **{key: spread([median(run[key]) for run in runs]) for key in ["pp", "tg"]},
            "peak": max(run["peak"] for run in runs),
            "others": max(run["others"] for run in runs),
        }
    # Within one round, so that a machine that drifts does not count.
    ratio = {
        key: spread([median(r["onebit"][key]) / median(r["peer"][key]) for r in rounds]) for key in ["pp", "tg"]
    }
    first = rounds[0]["onebit"]
    bandwidth = median(r["onebit"]["bandwidth_gbs"] for r in rounds)
    for engine in engines.values():
        engine["share"] = engine["tg"]["median"] * first["bytes_per_token"] / 1e9 / bandwidth
    return {
        "shape": args.shape,
        "threads": args.threads,
        "prompt": args.prompt,
        "generate": args.generate,
        "repeat": args.repeat,
        "peer_name": rounds[0]["peer"].get("name", "mlx-lm"),
        "processor": processor(),
        "device": first["device"],
        "activations": first["activations"],
        "kv": first["kv"],
        "bandwidth_gbs": bandwidth,
        "bytes_per_token": first["bytes_per_token"],
        "realtime": args.realtime,
        **engines,
        "ratio": ratio,
    }


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def cell(s):
    return f"{s['median']:.2f} ({s['min']:.2f}..{s['max']:.2f})"


def table(report):
    lines = [
        f"{report['shape']}, -t {report['threads']}, prompt {report['prompt']}, {report['generate']} generated; "
        f"{report['device']}; reads {report['bandwidth_gbs']:.1f} GB/s",
        f"{'':<12}{'prefill tok/s':>24}{'decode tok/s':>24}{'of bandwidth':>14}{'peak MiB':>10}{'others':>8}",
    ]
    for name, engine in [(report["peer_name"].split()[0], report["peer"]), ("onebit", report["onebit"])]:
        lines.append(
            f"{name:<12}{cell(engine['pp']):>24}{cell(engine['tg']):>24}{engine['share']:>13.0%} "
            f"{engine['peak'] / 2**20:>10.0f}{engine['others']:>8.0%}"
        )
    lines.append(f"{'ratio':<12}{cell(report['ratio']['pp']):>24}{cell(report['ratio']['tg']):>24}")
    busy = max(report[engine]["others"] for engine in ["peer", "onebit"]) > QUIET
    if busy and not report["realtime"]:
        lines.append("Other programs kept the cores busy: this is not a result. An idle machine or --realtime helps.")
    return "\n".join(lines)
