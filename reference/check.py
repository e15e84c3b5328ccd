#!/usr/bin/env python3
"""Independent re-implementation (numpy float64, no torch / transformers / mlx) of the text models.
Loads a case folder from its files only (config.json, model*.safetensors), recomputes every expected logit row and
compares.   usage: check.py CASE_DIR [CASE_DIR...]      exit status 0 when all pass (max|err| <= 1e-4 * max|logit|).
It is also meant to be read: it is the shortest complete statement of the two text architectures and the pack format."""

import json, os, struct, sys
import numpy as np

NP = {
    "F32": np.float32,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "I64": np.int64,
    "F64": np.float64,
    "U8": np.uint8,
}


def read_safetensors(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8 : 8 + n])
    out = {}
    for k, v in h.items():
        if k == "__metadata__":
            continue
        s, e = v["data_offsets"]
        raw = b[8 + n + s : 8 + n + e]
        if v["dtype"] == "BF16":
            a = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, NP[v["dtype"]])
        out[k] = a.reshape(v["shape"])
    return out


class Pack:
    def __init__(self, d):
        self.cfg = json.load(open(d + "/config.json"))
        self.t = {}
        for f in sorted(set(json.load(open(d + "/model.safetensors.index.json"))["weight_map"].values())):
            self.t.update(read_safetensors(os.path.join(d, f)))
        self.q = self.cfg.get("quantization") or {}
        # HF layout is recognised by the conv kernel being last (MLX packs have a trailing 1)
        self.hf = any(k.endswith("conv1d.weight") and v.shape[-1] != 1 for k, v in self.t.items())

    def mat(self, name):
        """float64 matrix of a linear/embedding; `name` without .weight"""
        w = self.t[name + ".weight"]
        if name + ".scales" not in self.t:
            return w.astype(np.float64)
        o = self.q.get(name, self.q)
        bits, gs = o["bits"], o["group_size"]
        N, words = w.shape
        codes = np.zeros((N, words * 32 // bits))
        for j in range(32 // bits):
            codes[:, j :: 32 // bits] = (w >> np.uint32(j * bits)) & np.uint32((1 << bits) - 1)
        s = np.repeat(self.t[name + ".scales"].astype(np.float64), gs, 1)
        b = np.repeat(self.t[name + ".biases"].astype(np.float64), gs, 1)
        return s * codes + b

    def vec(self, name, norm=False):
        v = self.t[name].astype(np.float64)
        return v + 1.0 if (norm and self.hf) else v


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def rope_tables(cfg, T, rot, theta, scaling, pos=None):
    """cos, sin [T, rot/2] incl. the YaRN attention factor"""
    inv = theta ** (-np.arange(0, rot, 2) / rot)
    m = 1.0
    if scaling and scaling.get("rope_type", scaling.get("type")) == "yarn":
        f, orig = scaling["factor"], scaling["original_max_position_embeddings"]
        bf, bs = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
        dim = lambda r: rot * np.log(orig / (r * 2 * np.pi)) / (2 * np.log(theta))
        lo, hi = max(np.floor(dim(bf)), 0), min(np.ceil(dim(bs)), rot - 1)
        if lo == hi:
            hi += 0.001
        ramp = np.clip((np.arange(rot // 2) - lo) / (hi - lo), 0, 1)
        inv = inv / f * ramp + inv * (1 - ramp)
        m = scaling.get("attention_factor") or (0.1 * np.log(f) + 1.0)
    p = np.arange(T)[:, None] if pos is None else pos
    a = p * inv
    return np.cos(a) * m, np.sin(a) * m


def rope(x, c, s):
    """x [T, heads, hd]; rotates the first 2*c.shape[1] dims, half-split (NeoX) pairing"""
    n = c.shape[1]
    c, s = c[:, None], s[:, None]
    a, b = x[..., :n], x[..., n : 2 * n]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * n :]], -1)


def attention(q, k, v):
    """causal; q [T,h,d], k,v [T,kv,d]; kv head g serves the h/kv CONSECUTIVE query heads"""
    T, h, d = q.shape
    rep = h // k.shape[1]
    out = np.zeros_like(q)
    mask = np.triu(np.full((T, T), -np.inf), 1)
    for i in range(h):
        p = softmax(q[:, i] @ k[:, i // rep].T / np.sqrt(d) + mask)
        out[:, i] = p @ v[:, i // rep]
    return out


def gdn(P, p, x, tc, eps):
    """gated delta net, token by token"""
    T = len(x)
    K, V = tc["linear_num_key_heads"], tc["linear_num_value_heads"]
    dk, dv = tc["linear_key_head_dim"], tc["linear_value_head_dim"]
    qkv = x @ P.mat(p + "in_proj_qkv").T
    z = (x @ P.mat(p + "in_proj_z").T).reshape(T, V, dv)
    b = sigmoid(x @ P.mat(p + "in_proj_b").T)
    a = x @ P.mat(p + "in_proj_a").T
    w = P.t[p + "conv1d.weight"].astype(np.float64)
    w = w.reshape(w.shape[0], -1)  # [C, kernel]; the LAST tap multiplies the current token
    kern = w.shape[1]
    pad = np.concatenate([np.zeros((kern - 1, qkv.shape[1])), qkv])
    conv = silu(sum(pad[j : j + T] * w[:, j] for j in range(kern)))
    q = conv[:, : K * dk].reshape(T, K, dk)
    k = conv[:, K * dk : 2 * K * dk].reshape(T, K, dk)
    v = conv[:, 2 * K * dk :].reshape(T, V, dv)
    l2 = lambda t: t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6)
    q, k = l2(q) / np.sqrt(dk), l2(k)
    q, k = (
        np.repeat(q, V // K, 1),
        np.repeat(k, V // K, 1),
    )  # value head h uses key head h // (V/K)  (repeat_interleave, NOT tile)
    sp = np.logaddexp(0, a + P.vec(p + "dt_bias"))
    g = np.exp(-np.exp(P.vec(p + "A_log")) * sp)
    S = np.zeros((V, dk, dv))
    out = np.zeros((T, V, dv))
    for t in range(T):
        S = S * g[t][:, None, None]
        d = (v[t] - np.einsum("hkv,hk->hv", S, k[t])) * b[t][:, None]
        S = S + k[t][:, :, None] * d[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", S, q[t])
    o = rms(out, P.vec(p + "norm.weight"), eps) * silu(z)  # norm first, then gate; this norm has no +1
    return o.reshape(T, V * dv) @ P.mat(p + "out_proj").T, S, qkv


def forward(P, ids=None, emb=None, pos3=None):
    """logits [T,V] (float64), list of residual streams, states"""
    cfg = P.cfg
    tc = cfg.get("text_config", cfg)
    q35 = "text_config" in cfg
    pre = ("model.language_model." if P.hf else "language_model.model.") if q35 else "model."
    eps, hd = tc["rms_norm_eps"], tc["head_dim"]
    nh, nkv = tc["num_attention_heads"], tc["num_key_value_heads"]
    E = P.mat(pre + "embed_tokens")
    x = E[ids] if emb is None else emb
    T = len(x)
    hs = [x]
    states = {}
    rp = tc.get("rope_parameters") or {}
    theta = rp.get("rope_theta") or tc.get("rope_theta")
    sc = tc.get("rope_scaling") or (rp if rp.get("rope_type") not in (None, "default") else None)
    rot = int(hd * rp.get("partial_rotary_factor", 1.0))
    c, s = rope_tables(tc, T, rot, theta, sc)
    if (
        pos3 is not None
    ):  # interleaved mrope: frequency j takes its position from T,H,W by j % 3, up to the section length
        ms = rp["mrope_section"]
        sel = np.zeros(rot // 2, int)
        for dim in (1, 2):
            sel[dim : ms[dim] * 3 : 3] = dim
        c, s = rope_tables(tc, T, rot, theta, sc, pos=np.asarray(pos3)[sel].T)
    for i in range(tc["num_hidden_layers"]):
        p = f"{pre}layers.{i}."
        h = rms(x, P.vec(p + "input_layernorm.weight", True), eps)
        if q35 and tc["layer_types"][i] == "linear_attention":
            o, S, qkv = gdn(P, p + "linear_attn.", h, tc, eps)
            states[i] = (S, qkv)
        else:
            a = p + "self_attn."
            q = (h @ P.mat(a + "q_proj").T).reshape(T, nh, -1)
            gate = None
            if q35:  # per head: first head_dim = query, second head_dim = output gate
                q, gate = q[..., :hd], q[..., hd:]
            k = (h @ P.mat(a + "k_proj").T).reshape(T, nkv, hd)
            v = (h @ P.mat(a + "v_proj").T).reshape(T, nkv, hd)
            q = rope(rms(q, P.vec(a + "q_norm.weight", True), eps), c, s)
            k = rope(rms(k, P.vec(a + "k_norm.weight", True), eps), c, s)
            o = attention(q, k, v)
            if gate is not None:
                o = o * sigmoid(gate)
            o = o.reshape(T, nh * hd) @ P.mat(a + "o_proj").T
        x = x + o
        h = rms(x, P.vec(p + "post_attention_layernorm.weight", True), eps)
        x = (
            x
            + (silu(h @ P.mat(p + "mlp.gate_proj").T) * (h @ P.mat(p + "mlp.up_proj").T)) @ P.mat(p + "mlp.down_proj").T
        )
        hs.append(x)
    f = rms(x, P.vec(pre + "norm.weight", True), eps)
    if tc.get("tie_word_embeddings", cfg.get("tie_word_embeddings")):
        W = E
    else:
        W = P.mat(("lm_head" if P.hf else "language_model.lm_head") if q35 else "lm_head")
    return f @ W.T, hs, states, f


def listed(X, n, rows):
    """The rows of a [T, V] result that the case keeps: all, or those of `logit_rows.N`."""
    return rows[X[f"logit_rows.{n}"]] if f"logit_rows.{n}" in X else rows


def compare_logits(P, X, lens):
    """Largest error, largest logit; and what forward gave for each length."""
    worst, scale, runs = 0, 0, {}
    for n in lens:
        runs[n] = forward(P, X[f"ids.{n}"])
        ref = X[f"logits.{n}"].astype(np.float64)
        worst = max(worst, np.abs(listed(X, n, runs[n][0]) - ref).max())
        scale = max(scale, np.abs(ref).max())
    return worst, scale, runs


def check(d):
    P = Pack(d)
    X = read_safetensors(d + "/expected.safetensors")
    info = json.load(open(d + "/expected.json"))
    cache, mat = {}, P.mat
    P.mat = lambda n: cache[n] if n in cache else cache.setdefault(n, mat(n))
    worst, scale, runs = compare_logits(P, X, info["prompt_lens"])
    ok, notes = worst <= 1e-4 * scale, [f"max|err| {worst:.2e} (max|logit| {scale:.1f}, rel {worst / scale:.1e})"]
    if "hidden.7" in X:
        hd = max(np.abs(a - b).max() for a, b in zip(runs[7][1], X["hidden.7"])) / np.abs(X["hidden.7"]).max()
        ok, notes = ok and hd < 1e-4, notes + [f"hidden(rel) {hd:.1e}"]
    for i, (S, qkv) in runs[65][2].items():
        if f"state.rec.after65.layer{i}" in X:
            sd = np.abs(S - X[f"state.rec.after65.layer{i}"]).max()
            conv = X[f"state.conv.after65.layer{i}"]
            cd = np.abs(qkv[-conv.shape[1] :].T - conv).max()
            ok, notes = ok and sd < 1e-4 and cd < 1e-4, notes + [f"state {sd:.1e} conv {cd:.1e}"]
    for n in (7, 65):
        seq = np.concatenate([X[f"ids.{n}"], X[f"greedy.ids.{n}"]])
        lg = forward(P, seq)[0][n - 1 : -1]
        same = bool((lg.argmax(-1) == X[f"greedy.ids.{n}"]).all())
        ok, notes = ok and same, notes + [f"greedy.{n} {'equal' if same else 'DIFFERENT'}"]
        if f"greedy.logits.{n}" in X:
            gd = np.abs(lg - X[f"greedy.logits.{n}"]).max()
            ok, notes = ok and gd <= 2e-4 * scale, notes + [f"greedy logits {gd:.1e}"]
    print("PASS" if ok else "FAIL", d + ":", ", ".join(notes), flush=True)
    return ok


if __name__ == "__main__":
    r = [check(d.rstrip("/")) for d in sys.argv[1:]]
    sys.exit(0 if all(r) else 1)
