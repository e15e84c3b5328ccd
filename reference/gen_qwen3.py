"""Case family (a): tiny Qwen3 dense packs (MLX names and packing) + expected outputs from HF Qwen3ForCausalLM.

usage: gen_qwen3.py OUT_DIR --seed 1 --dims dev [--only NAME]
"""

import argparse, json, os, sys, shutil, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np, torch
from common import *
from transformers import Qwen3Config, Qwen3ForCausalLM

DIMS = {
    "dev": dict(hidden=256, layers=3, heads=4, kv=2, ffn=512, vocab=320, merges=24),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
# name -> options. head_dim differs between dev and other on purpose
CASES = {
    "qwen3_1bit_tied_yarn": dict(tied=True, hd=64, yarn="rope_scaling"),  # like Bonsai 1.7B/4B: tied + YaRN x4
    "qwen3_1bit_untied": dict(tied=False, hd=128),  # like Bonsai 8B shape family
    "qwen3_1bit_affine": dict(tied=False, hd=64, affine=["mlp.down_proj", "self_attn.q_proj", "lm_head"]),
    "qwen3_2bit_ternary": dict(tied=True, hd=64, bits=2),
    "qwen3_1bit_g64": dict(tied=True, hd=64, gs=64),
    "qwen3_1bit_bf16": dict(tied=False, hd=64, dt="bf16", yarn="rope_parameters"),  # HF>=5 style nested rope_parameters
    "qwen3_mixed": dict(tied=False, hd=64, mixed=True, shards=2),
}


def config_json(d, o, ids, seed):
    q = {"group_size": o.get("gs", 128), "bits": o.get("bits", 1)}
    if o.get("mixed"):
        q["mode"] = "affine"
        q["lm_head"] = {"group_size": 64, "bits": 4}
        q["model.embed_tokens"] = {"group_size": 128, "bits": 2}
        q["model.layers.0.mlp.down_proj"] = {"group_size": 64, "bits": 8}
        q["model.layers.1.self_attn.v_proj"] = False  # kept dense
        q["model.layers.1.mlp.gate_proj"] = {"group_size": 32, "bits": 4, "mode": "affine"}
    c = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "dtype": "bfloat16" if o.get("dt") == "bf16" else "float16",
        "head_dim": d["hd"],
        "hidden_act": "silu",
        "hidden_size": d["hidden"],
        "initializer_range": 0.02,
        "intermediate_size": d["ffn"],
        "layer_types": ["full_attention"] * d["layers"],
        "max_position_embeddings": 32768,
        "max_window_layers": d["layers"],
        "model_type": "qwen3",
        "num_attention_heads": d["heads"],
        "num_hidden_layers": d["layers"],
        "num_key_value_heads": d["kv"],
        "quantization": q,
        "quantization_config": q,
        "rms_norm_eps": 1e-06,
        "sliding_window": None,
        "tie_word_embeddings": o["tied"],
        "transformers_version": "4.57.3",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": d["vocab"],
    }
    theta = 1000000.0 if seed % 2 else 500000.0
    if o.get("yarn") == "rope_parameters":
        c["rope_parameters"] = dict(YARN, rope_theta=theta)
    else:
        c["rope_theta"] = theta
        c["rope_scaling"] = dict(YARN) if o.get("yarn") else None
    return c


def build(d, o, cfg, seed):
    """returns ({mlx tensor name: tensor}, {hf name: f32 tensor}, [quantized module names])"""
    r = Rng(seed)
    H, F, V, hd = d["hidden"], d["ffn"], d["vocab"], d["hd"]
    dt = o.get("dt", "f16")
    qc = cfg["quantization"]
    base = {"bits": qc["bits"], "group_size": qc["group_size"]}
    T, W, qn = {}, {}, []

    def lin(name, n, k, std):
        spec = dict(base)
        ov = qc.get(name)
        if ov is False:
            w = r.normal((n, k), std, dt)
            T[name + ".weight"] = w
            W[name + ".weight"] = w.float()
            return
        if isinstance(ov, dict):
            spec = {"bits": ov["bits"], "group_size": ov["group_size"], "kind": "affine"}
        if any(name.endswith(a) for a in o.get("affine", [])):
            spec["affine"] = True
        m = r.quant(n, k, spec, std, dt)
        T.update(m.tensors(name))
        W[name + ".weight"] = m.dequant()
        qn.append(name)

    def norm(name, n, mean=1.0, std=0.25):
        w = r.normal((n,), std, dt, mean)
        T[name + ".weight"] = w
        W[name + ".weight"] = w.float()

    lin("model.embed_tokens", V, H, 0.1 if o["tied"] else 0.5)
    for i in range(d["layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm", H)
        norm(p + "post_attention_layernorm", H)
        norm(p + "self_attn.q_norm", hd, 1.3)
        norm(p + "self_attn.k_norm", hd, 1.3)
        lin(p + "self_attn.q_proj", d["heads"] * hd, H, H**-0.5)
        lin(p + "self_attn.k_proj", d["kv"] * hd, H, H**-0.5)
        lin(p + "self_attn.v_proj", d["kv"] * hd, H, H**-0.5)
        lin(p + "self_attn.o_proj", H, d["heads"] * hd, 1.2 * (d["heads"] * hd) ** -0.5)
        lin(p + "mlp.gate_proj", F, H, H**-0.5)
        lin(p + "mlp.up_proj", F, H, H**-0.5)
        lin(p + "mlp.down_proj", H, F, 2.0 * F**-0.5)
    norm("model.norm", H, 2.5 if o["tied"] else 1.0, 0.5)
    if not o["tied"]:
        lin("lm_head", V, H, 3.0 * H**-0.5)
    return T, W, qn


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--dims", default="dev")
    ap.add_argument("--only")
    a = ap.parse_args()
    for ci, (name, o) in enumerate(CASES.items()):
        if a.only and a.only != name:
            continue
        t0 = time.time()
        d = dict(DIMS[a.dims])
        d["hd"] = o["hd"] if a.dims == "dev" else {64: 128, 128: 64}[o["hd"]]
        if a.dims == "other" and d["hd"] == 128:
            d["heads"] = 4
            d["kv"] = 1 if ci % 2 else 2
        if a.dims == "other" and (o.get("bits") == 2 or o.get("mixed")):
            d["layers"] = 4
        out = os.path.join(a.out, name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        ids, n_text, _ = make_tokenizer(out, d["merges"], d["vocab"], "qwen3", 32768, template_inline=True)
        cfg = config_json(d, o, ids, a.seed)
        json.dump(cfg, open(out + "/config.json", "w"), indent=2)
        json.dump(
            {
                "bos_token_id": ids["<|endoftext|>"],
                "do_sample": True,
                "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                "pad_token_id": ids["<|endoftext|>"],
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
            },
            open(out + "/generation_config.json", "w"),
            indent=1,
        )
        T, W, qn = build(d, o, cfg, a.seed * 1000 + ci)
        write_model(out, T, o.get("shards", 1))
        hc = {k: v for k, v in cfg.items() if k not in ("quantization", "quantization_config", "dtype")}
        if hc.get("rope_scaling"):  # HF>=5 spelling of the same thing
            hc["rope_parameters"] = dict(hc.pop("rope_scaling"), rope_theta=hc.pop("rope_theta"))
        elif "rope_theta" in hc:
            hc.pop("rope_scaling", None)
            hc["rope_parameters"] = {"rope_type": "default", "rope_theta": hc.pop("rope_theta")}
        hcfg = Qwen3Config(**hc)
        hcfg._attn_implementation = "eager"
        model = Qwen3ForCausalLM(hcfg).float().eval()
        miss, unexp = model.load_state_dict(W, strict=False)
        assert not unexp and all(m == "lm_head.weight" for m in miss) and (not miss or o["tied"]), (miss, unexp)
        model.tie_weights()
        X, info = lm_expected(
            model,
            model.model,
            d["vocab"],
            n_text,
            a.seed * 100 + ci,
            [n for n in qn if n != "model.embed_tokens"] + (["lm_head"] if o["tied"] else []),
        )
        rot = model.model.rotary_emb
        X["rope.inv_freq"] = rot.inv_freq.float().clone()
        info["rope_attention_scaling"] = float(rot.attention_scaling)
        info.update(
            {
                "case": name,
                "family": "qwen3",
                "dims": d,
                "opts": o,
                "seed": a.seed,
                "reference": "transformers Qwen3ForCausalLM float32 eager",
                "tokenizer": tokenizer_expected(out, "qwen3"),
            }
        )
        write_expected(out, X, info)
        g = info["greedy"]
        print(
            f"{name:24s} {dir_size(out) / 1e6:.2f}MB std {info['logit_std']:.2f} margins {[round(g[k]['min_margin'], 3) for k in g]} distinct {[g[k]['distinct'] for k in g]} "
            f"cons {max(info['consistency'].values()):.1e} f64 {info['f64_vs_f32']['max_abs']:.1e} | int8 max {info['int8_act_sim_g128']['max_abs']:.3f} rel {info['int8_act_sim_g128']['rel_rms']:.4f} kl {info['int8_act_sim_g128']['kl_mean']:.1e} top1 {info['int8_act_sim_g128']['top1_agree']:.3f} ({time.time() - t0:.0f}s)",
            flush=True,
        )


main()
