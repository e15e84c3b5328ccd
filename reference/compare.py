#!/usr/bin/env python3
"""Compare an engine's output with a golden case.

  compare.py CASE_DIR_or_expected.safetensors ENGINE_OUT [--map a=b ...] [--only PREFIX] [--profile f32|int8|f16|none]

ENGINE_OUT: .safetensors or .npz with arrays named like the expected tensors; .npy (one array; give its name with --map NAME=);
or .json {name: nested list} / {name: {"shape": [...], "data": [...]}}.
For every name present in both, prints max abs error, relative rms, min/mean row cosine; for logits also KL(ref||engine), top-1 agreement
and the largest reference margin among rows whose top-1 differs; for integer tensors, the number of mismatches.
--profile checks the limits of README.md and sets the exit status (0 = all within, 1 = not, 2 = nothing compared).
"""

import argparse, json, os, struct, sys
import numpy as np


def st(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8 : 8 + n])
    out = {}
    D = {
        "F32": np.float32,
        "F16": np.float16,
        "F64": np.float64,
        "U32": np.uint32,
        "I32": np.int32,
        "I64": np.int64,
        "U8": np.uint8,
    }
    for k, v in h.items():
        if k == "__metadata__":
            continue
        s, e = v["data_offsets"]
        raw = b[8 + n + s : 8 + n + e]
        a = (
            (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            if v["dtype"] == "BF16"
            else np.frombuffer(raw, D[v["dtype"]])
        )
        out[k] = a.reshape(v["shape"])
    return out


def load(path, maps):
    if path.endswith(".safetensors"):
        return st(path)
    if path.endswith(".npz"):
        return dict(np.load(path))
    if path.endswith(".npy"):
        if not maps:
            sys.exit("a .npy needs --map NAME=")
        return {next(iter(maps)): np.load(path)}
    j = json.load(open(path))
    out = {}
    for k, v in j.items():
        if isinstance(v, dict) and "data" in v:
            out[k] = np.array(v["data"]).reshape(v["shape"])
        elif isinstance(v, (list, int, float)):
            out[k] = np.array(v)
    return out


def lsm(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def stats(r, e):
    r, e = r.astype(np.float64), e.astype(np.float64)
    d = e - r
    s = {
        "max_abs": np.abs(d).max(),
        "rel_max": np.abs(d).max() / max(np.abs(r).max(), 1e-30),
        "rel_rms": np.sqrt((d * d).mean() / max((r * r).mean(), 1e-60)),
    }
    R, E = r.reshape(-1, r.shape[-1]), e.reshape(-1, e.shape[-1])
    c = (R * E).sum(1) / np.maximum(np.linalg.norm(R, axis=1) * np.linalg.norm(E, axis=1), 1e-30)
    s["cos_min"], s["cos_mean"] = c.min(), c.mean()
    if not np.isfinite(e).all():
        s["NONFINITE"] = int((~np.isfinite(e)).sum())
    return s


LIM = {  # name class -> limits   (see README.md)
    "f32": {"logits": dict(rel_max=5e-4, rel_rms=1e-4, top1=0.999), "other": dict(rel_rms=2e-4)},
    "int8": {"logits": dict(rel_rms=0.15, kl=0.12, top1=0.80, margin=2.5), "other": dict(rel_rms=0.20)},
    "f16": {"logits": dict(rel_rms=0.05, kl=0.02, top1=0.90, margin=1.0), "other": dict(rel_rms=0.05)},
}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("expected")
    ap.add_argument("engine")
    ap.add_argument("--map", nargs="*", default=[])
    ap.add_argument("--only", default="")
    ap.add_argument("--profile", default="none")
    a = ap.parse_args()
    exp = a.expected if a.expected.endswith(".safetensors") else os.path.join(a.expected, "expected.safetensors")
    X = st(exp)
    maps = dict(m.split("=", 1) for m in a.map)
    Y = load(a.engine, maps)
    for k, v in maps.items():
        if v and v in Y:
            Y[k] = Y[v]
    n, bad = 0, 0
    L = LIM.get(a.profile)
    agg = []
    js = os.path.join(os.path.dirname(exp), "expected.json")
    sim = json.load(open(js)).get("int8_act_sim_g128") if os.path.exists(js) else None
    for k in sorted(X):
        if k.startswith("logit_rows.") or k not in Y or not k.startswith(a.only):
            continue
        r, e = X[k], np.asarray(Y[k])
        if k.startswith("logits.") and "logit_rows" + k[6:] in X and len(e) > len(r):
            e = e[X["logit_rows" + k[6:]]]  # the case keeps some rows only
        if r.shape != e.shape and r.size == e.size:
            e = e.reshape(r.shape)
        if r.shape != e.shape:
            print(f"{k:32s} SHAPE expected {r.shape} got {e.shape}")
            bad += 1
            n += 1
            continue
        n += 1
        if r.dtype.kind in "iu":
            m = int((r.astype(np.int64) != e.astype(np.int64)).sum())
            print(
                f"{k:32s} int  mismatches {m}/{r.size}"
                + (f" first at {int(np.flatnonzero((r != e).ravel())[0])}" if m else "")
            )
            bad += m > 0 and a.profile == "f32"
            continue
        s = stats(r, e)
        fail = []
        lg = "logits" in k
        if lg:
            pr, pe = (
                lsm(r.astype(np.float64)).reshape(-1, r.shape[-1]),
                lsm(e.astype(np.float64)).reshape(-1, r.shape[-1]),
            )
            s["kl"] = (np.exp(pr) * (pr - pe)).sum(-1).mean()
            same = pr.argmax(-1) == pe.argmax(-1)
            s["top1"] = same.mean()
            if k.startswith("logits."):
                agg.append((r.reshape(-1, r.shape[-1]), e.reshape(-1, r.shape[-1])))
            t = np.sort(r.reshape(-1, r.shape[-1]).astype(np.float64), -1)
            mg = t[:, -1] - t[:, -2]
            s["margin"] = mg[~same].max() if (~same).any() else 0.0
        if L and not (lg and a.profile == "int8" and sim):  # int8 on logits is judged over all prompts together, below
            for q, lim in L["logits" if lg else "other"].items():
                if (
                    (s[q] < lim)
                    if q == "top1" and s[q] * len(r.reshape(-1, r.shape[-1])) < len(r.reshape(-1, r.shape[-1])) - 1
                    else (q != "top1" and not s[q] <= lim)
                ):
                    fail.append(f"{q} {s[q]:.3g} vs {lim}")
            if "NONFINITE" in s:
                fail.append("nonfinite")
        bad += bool(fail)
        print(
            f"{k:32s} "
            + " ".join(f"{q} {v:.3g}" for q, v in s.items())
            + ("   FAIL " + "; ".join(fail) if fail else "")
        )
    if agg:
        r, e = (np.concatenate(x).astype(np.float64) for x in zip(*agg))
        s = stats(r, e)
        pr, pe = lsm(r), lsm(e)
        s["kl"] = (np.exp(pr) * (pr - pe)).sum(-1).mean()
        same = pr.argmax(-1) == pe.argmax(-1)
        s["top1"] = same.mean()
        fail = []
        if (
            a.profile == "int8" and sim
        ):  # simulated per-128 symmetric int8 activations of the same case are the yardstick
            for q, lim, ok in (
                ("rel_rms", 1.6 * sim["rel_rms"], lambda v, l: v <= l),
                ("kl", 2.5 * sim["kl_mean"], lambda v, l: v <= l),
                ("top1", sim["top1_agree"] - 0.07, lambda v, l: v >= l),
            ):
                if not ok(s[q], lim):
                    fail.append(f"{q} {s[q]:.3g} vs {lim:.3g}")
        bad += bool(fail)
        print(
            f"{'ALL logits.* (%d rows)' % len(r):32s} "
            + " ".join(f"{q} {v:.3g}" for q, v in s.items())
            + ("   FAIL " + "; ".join(fail) if fail else "")
        )
    print(f"compared {n}, failed {bad}" + (f" (profile {a.profile})" if L else ""))
    sys.exit(2 if n == 0 else int(bad > 0))


main()
