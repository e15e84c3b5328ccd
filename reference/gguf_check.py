#!/usr/bin/env python3
"""Independent GGUF check: own parser (no gguf package), undoes llama.cpp's converter transforms, runs check.py's numpy model and
compares with the expected logits.   usage: gguf_check.py CASE_DIR..."""

import json, os, re, struct, sys
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check as C


def parse(path):
    b = open(path, "rb").read()
    o = 0

    def rd(f):
        nonlocal o
        v = struct.unpack_from("<" + f, b, o)
        o += struct.calcsize("<" + f)
        return v[0]

    def s():
        nonlocal o
        n = rd("Q")
        v = b[o : o + n].decode("utf-8", "surrogateescape")
        o += n
        return v

    S = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def val(t):
        if t == 8:
            return s()
        if t == 9:
            et = rd("I")
            n = rd("Q")
            return [val(et) for _ in range(n)]
        return rd(S[t])

    assert b[:4] == b"GGUF"
    o = 4
    assert rd("I") == 3
    nt = rd("Q")
    nk = rd("Q")
    kv = {}
    for _ in range(nk):
        k = s()
        kv[k] = val(rd("I"))
    inf = []
    for _ in range(nt):
        n = s()
        nd = rd("I")
        dims = [rd("Q") for _ in range(nd)]
        ty = rd("I")
        off = rd("Q")
        inf.append((n, dims, ty, off))
    al = kv.get("general.alignment", 32)
    base = (o + al - 1) // al * al
    T = {}
    for n, dims, ty, off in inf:
        ne = int(np.prod(dims))
        shp = dims[::-1]
        p = base + off
        if ty == 0:
            a = np.frombuffer(b, np.float32, ne, p).astype(np.float64)
        elif ty == 1:
            a = np.frombuffer(b, np.float16, ne, p).astype(np.float64)
        elif ty in (2, 3, 8):  # Q4_0, Q4_1, Q8_0: 18, 20, 34 bytes / 32
            r = np.frombuffer(b, np.uint8, ne // 32 * {2: 18, 3: 20, 8: 34}[ty], p).reshape(
                -1, {2: 18, 3: 20, 8: 34}[ty]
            )
            d = r[:, :2].copy().view(np.float16).astype(np.float64)
            if ty == 8:
                a = d * r[:, 2:].view(np.int8)
            else:
                c = r[:, -16:]
                q = np.concatenate([c & 15, c >> 4], 1).astype(np.float64)
                a = d * (q - 8) if ty == 2 else d * q + r[:, 2:4].copy().view(np.float16).astype(np.float64)
        elif ty == 41:  # Q1_0: 18 bytes / 128
            r = np.frombuffer(b, np.uint8, ne // 128 * 18, p).reshape(-1, 18)
            d = r[:, :2].copy().view(np.float16).astype(np.float64)
            a = (np.unpackbits(r[:, 2:], axis=1, bitorder="little").astype(np.float64) * 2 - 1) * d
        elif ty == 42:  # Q2_0 (upstream): 18 bytes / 64
            r = np.frombuffer(b, np.uint8, ne // 64 * 18, p).reshape(-1, 18)
            d = r[:, :2].copy().view(np.float16).astype(np.float64)
            q = np.stack([(r[:, 2:] >> (2 * j)) & 3 for j in range(4)], -1).reshape(-1, 64).astype(np.float64)
            a = (q - 1) * d
        else:
            raise ValueError((n, ty))
        T[n] = a.reshape(shp)
    return kv, T


def untile(a, axis, K, r, hd):
    """undo llama.cpp's V-head reorder: tiled [v0 of all K heads, v1 of all K heads...] -> grouped by K head"""
    a = np.moveaxis(a, axis, 0)
    s = a.shape
    a = a.reshape(r, K, hd, *s[1:]).swapaxes(0, 1).reshape(s)
    return np.moveaxis(a, 0, axis)


class GPack:
    def __init__(self, path):
        kv, T = parse(path)
        self.kv = kv
        ar = kv["general.architecture"]
        g = lambda k, d=None: kv.get(ar + "." + k, d)
        q35 = ar == "qwen35"
        nl = g("block_count") - (g("nextn_predict_layers") or 0)
        tc = {
            "rms_norm_eps": g("attention.layer_norm_rms_epsilon"),
            "head_dim": g("attention.key_length"),
            "num_attention_heads": g("attention.head_count"),
            "num_key_value_heads": g("attention.head_count_kv"),
            "num_hidden_layers": nl,
            "tie_word_embeddings": "output.weight" not in T,
            "rope_theta": g("rope.freq_base"),
        }
        if g("rope.scaling.type") == "yarn":
            tc["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": g("rope.scaling.factor"),
                "original_max_position_embeddings": g("rope.scaling.original_context_length"),
            }
        if q35:
            tc["rope_parameters"] = {
                "rope_theta": g("rope.freq_base"),
                "partial_rotary_factor": g("rope.dimension_count") / g("attention.key_length"),
                "rope_type": "default",
            }
            iv = g("full_attention_interval") or 4
            tc["layer_types"] = ["full_attention" if (i + 1) % iv == 0 else "linear_attention" for i in range(nl)]
            K, V, dk = g("ssm.group_count"), g("ssm.time_step_rank"), g("ssm.state_size")
            dv = g("ssm.inner_size") // V
            tc.update(
                linear_num_key_heads=K,
                linear_num_value_heads=V,
                linear_key_head_dim=dk,
                linear_value_head_dim=dv,
                linear_conv_kernel_dim=g("ssm.conv_kernel"),
            )
            r = V // K
        pre = "language_model.model." if q35 else "model."
        self.cfg = {"text_config": tc} if q35 else tc
        self.hf = False
        self.q = {}
        self.t = M = {}
        top = {
            "token_embd.weight": pre + "embed_tokens.weight",
            "output_norm.weight": pre + "norm.weight",
            "output.weight": ("language_model." if q35 else "") + "lm_head.weight",
        }
        mp = {
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
            "attn_qkv": "linear_attn.in_proj_qkv",
            "attn_gate": "linear_attn.in_proj_z",
            "ssm_beta": "linear_attn.in_proj_b",
            "ssm_alpha": "linear_attn.in_proj_a",
            "ssm_out": "linear_attn.out_proj",
            "ssm_conv1d": "linear_attn.conv1d",
            "ssm_norm": "linear_attn.norm",
            "ssm_dt": "linear_attn.dt_bias",
            "ssm_a": "linear_attn.A_log",
        }
        for n, a in T.items():
            if n in top:
                M[top[n]] = a
                continue
            m = re.match(r"blk\.(\d+)\.([a-z0-9_]+)(?:\.(weight|bias))?$", n)
            if not m or int(m.group(1)) >= nl:
                continue
            k = m.group(2)
            name = pre + f"layers.{m.group(1)}." + mp[k]
            if k == "ssm_a":
                a = untile(np.log(-a), 0, K, r, 1)
            elif k == "ssm_dt":
                a = untile(a, 0, K, r, 1)
            elif k in ("ssm_alpha", "ssm_beta"):
                a = untile(a, 0, K, r, 1)
            elif k == "attn_gate":
                a = untile(a, 0, K, r, dv)
            elif k == "ssm_out":
                a = untile(a, 1, K, r, dv)
            elif k in ("attn_qkv", "ssm_conv1d"):
                a = np.concatenate([a[: 2 * K * dk], untile(a[2 * K * dk :], 0, K, r, dv)])
            if k == "ssm_conv1d":
                a = a[:, :, None]
            M[name + ("" if k in ("ssm_a", "ssm_dt") else ".weight")] = a

    def mat(self, n):
        return self.t[n + ".weight"]

    def vec(self, n, norm=False):
        return self.t[n]


def main():
    ok = True
    for d in (a.rstrip("/") for a in sys.argv[1:]):
        P = GPack(d + "/model.gguf")
        here = d if os.path.exists(d + "/expected.safetensors") else None
        original = here or os.path.join(os.path.dirname(d), json.load(open(d + "/gguf.json"))["twin_of"])
        X = C.read_safetensors(original + "/expected.safetensors")
        worst, scale, _ = C.compare_logits(P, X, (1, 7, 64, 65, 130, 200))
        good = worst <= 1e-4 * scale
        ok &= good
        facts = P.kv["general.architecture"], "pre", P.kv.get("tokenizer.ggml.pre")
        print("PASS" if good else "FAIL", d, f"max|err| {worst:.2e} (max|logit| {scale:.1f})", *facts, flush=True)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
