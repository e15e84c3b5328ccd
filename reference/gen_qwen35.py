"""Case family (b): tiny Qwen3.5 hybrid packs (Qwen3_5ForConditionalGeneration, names/layout as mlx-lm / mlx-vlm write them)
+ expected outputs from HF transformers in float32.

Pack facts reproduced here (see mlx_lm/models/qwen3_5.py, mlx_vlm/models/qwen3_5/qwen3_5.py `sanitize`):
  * names: language_model.model.*, language_model.lm_head.*, vision_tower.*  (HF: model.language_model.*, lm_head.*, model.visual.*)
  * RMSNorm weights input_layernorm, post_attention_layernorm, q_norm, k_norm, final norm are stored as (1 + w_hf); linear_attn.norm is NOT shifted
  * conv1d.weight is stored [channels, kernel, 1]  (HF: [channels, 1, kernel])
  * vision_tower.patch_embed.proj.weight is stored [out, T, H, W, C] (HF: [out, C, T, H, W])
  * every nn.Linear / nn.Embedding of the language model is quantized, also in_proj_a / in_proj_b

usage: gen_qwen35.py OUT_DIR --seed 1 --dims dev [--only NAME]
"""

import argparse, json, os, sys, shutil, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np, torch
from common import *
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

DIMS = {
    "dev": dict(
        hidden=256,
        layers=8,
        heads=4,
        kv=2,
        hd=64,
        ffn=512,
        vocab=320,
        merges=24,
        kh=2,
        vh=6,
        mrope=[3, 3, 2],
        theta=10000000,
        vis=dict(depth=2, hidden=64, heads=4, ffn=128, npos=64),
    ),
}
CASES = {
    "qwen35_1bit_untied": dict(tied=False, ld=128),
    "qwen35_1bit_tied_ld64": dict(tied=True, ld=64, a_dt="f16", vscale=1.0),
    "qwen35_1bit_mtp": dict(tied=False, ld=64, mtp=True, vision="dense"),
    "qwen35_2bit_ternary": dict(tied=False, ld=64, bits=2, layers=4),
    "qwen35_1bit_bf16_g64": dict(tied=True, ld=64, dt="bf16", gs=64, layers=4),
    "qwen35_hf_bf16": dict(tied=False, ld=64, dt="bf16", hf_layout=True, layers=4, mtp=True, small=True),
}


def dims_for(which, o):
    d = json.loads(json.dumps(DIMS[which]))
    d["ldk"] = d["ldv"] = o["ld"]
    if which == "other":
        if o["ld"] == 64:
            d.update(kh=2, vh=8, heads=4, kv=1, ldk=64, ldv=64)
            if o.get("tied"):
                d.update(ldk=128, ldv=64, vh=6)  # key and value head widths differ
    if "layers" in o:
        d["layers"] = o["layers"] if which == "dev" else o["layers"] + (1 if o.get("bits") != 2 else 0)
    if which == "other" and (o.get("mtp") or o.get("bits") == 2) and not o.get("small"):
        d.update(hidden=256, ffn=640, hd=64, mrope=[3, 3, 2])
        d["vis"].update(hidden=64, ffn=96)
    if o.get("small"):
        d.update(hidden=128, ffn=256, heads=2, kv=1, kh=1, vh=2 if which == "dev" else 3, layers=4)
        if which == "other":
            d.update(ffn=128, hd=64, mrope=[3, 3, 2])
    return d


def config_json(d, o, ids):
    q = {"group_size": o.get("gs", 128), "bits": o.get("bits", 1)}
    q.update(o.get("qextra", {}))
    dtn = "bfloat16" if o.get("dt") == "bf16" else "float16"
    v = d["vis"]
    c = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "image_token_id": ids["<|image_pad|>"],
        "model_type": "qwen3_5",
        "quantization": q,
        "quantization_config": q,
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "dtype": dtn,
            "eos_token_id": ids["<|endoftext|>"],
            "full_attention_interval": 4,
            "head_dim": d["hd"],
            "hidden_act": "silu",
            "hidden_size": d["hidden"],
            "initializer_range": 0.02,
            "intermediate_size": d["ffn"],
            "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(d["layers"])],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": d["ldk"],
            "linear_num_key_heads": d["kh"],
            "linear_num_value_heads": d["vh"],
            "linear_value_head_dim": d["ldv"],
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "mlp_only_layers": [],
            "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1 if o.get("mtp") else 0,
            "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": d["heads"],
            "num_hidden_layers": d["layers"],
            "num_key_value_heads": d["kv"],
            "rms_norm_eps": 1e-06,
            "tie_word_embeddings": o["tied"],
            "use_cache": True,
            "vocab_size": d["vocab"],
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": d["mrope"],
                "partial_rotary_factor": 0.25,
                "rope_theta": d["theta"],
                "rope_type": "default",
            },
        },
        "tie_word_embeddings": o["tied"],
        "transformers_version": "4.57.0.dev0",
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": v["depth"],
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": v["hidden"],
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": v["ffn"],
            "model_type": "qwen3_5",
            "num_heads": v["heads"],
            "num_position_embeddings": v["npos"],
            "out_hidden_size": d["hidden"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }
    if o.get("hf_layout"):
        c.pop("quantization")
        c.pop("quantization_config")
    return c


def hf_name(n):
    if n.startswith("language_model.model."):
        return "model.language_model." + n[len("language_model.model.") :]
    if n.startswith("language_model.lm_head"):
        return n[len("language_model.") :]
    if n.startswith("language_model.mtp."):
        return n[len("language_model.") :]
    if n.startswith("vision_tower."):
        return "model.visual." + n[len("vision_tower.") :]
    raise KeyError(n)


def build(d, o, cfg, seed):
    """returns (pack tensors by pack name, HF float32 state dict, quantized pack module names)"""
    r = Rng(seed)
    H, F, V, hd = d["hidden"], d["ffn"], d["vocab"], d["hd"]
    dt, hf = o.get("dt", "f16"), o.get("hf_layout")
    qc = cfg.get("quantization")
    T, W, qn = {}, {}, []

    def lin(name, n, k, std, bias=False, force=None):
        spec = force if force is not None else (None if hf else {"bits": qc["bits"], "group_size": qc["group_size"]})
        if spec is None:
            w = r.normal((n, k), std, dt)
            T[name + ".weight"] = w
            W[hf_name(name + ".weight")] = w.float()
        else:
            m = r.quant(n, k, spec, std, dt)
            T.update(m.tensors(name))
            W[hf_name(name + ".weight")] = m.dequant()
            qn.append(name)
        if bias:
            b = r.normal((n,), 0.1, dt)
            T[name + ".bias"] = b
            W[hf_name(name + ".bias")] = b.float()

    def norm(name, n, mean=1.0, std=0.25, shifted=True):
        """stored value = effective gain; HF zero-centred weight = gain - 1 for shifted norms"""
        w = r.normal((n,), std, dt, mean)
        if hf and shifted:
            w = (w.float() - 1).to(DT[dt])
            T[name + ".weight"] = w
            W[hf_name(name + ".weight")] = w.float()
        else:
            T[name + ".weight"] = w
            W[hf_name(name + ".weight")] = w.float() - (1.0 if shifted else 0.0)

    def attn(p):
        norm(p + "self_attn.q_norm", hd, 1.5, 0.5)
        norm(p + "self_attn.k_norm", hd, 1.5, 0.5)
        lin(p + "self_attn.q_proj", d["heads"] * hd * 2, H, H**-0.5)
        lin(p + "self_attn.k_proj", d["kv"] * hd, H, H**-0.5)
        lin(p + "self_attn.v_proj", d["kv"] * hd, H, H**-0.5)
        lin(p + "self_attn.o_proj", H, d["heads"] * hd, 3.0 * (d["heads"] * hd) ** -0.5)

    def mlp(p):
        lin(p + "mlp.gate_proj", F, H, H**-0.5)
        lin(p + "mlp.up_proj", F, H, H**-0.5)
        lin(p + "mlp.down_proj", H, F, 2.0 * F**-0.5)

    L = "language_model.model."
    lin(L + "embed_tokens", V, H, 0.1 if o["tied"] else 0.5)
    kd, vd = d["kh"] * d["ldk"], d["vh"] * d["ldv"]
    for i in range(d["layers"]):
        p = f"{L}layers.{i}."
        norm(p + "input_layernorm", H)
        norm(p + "post_attention_layernorm", H)
        if (i + 1) % 4 == 0:
            attn(p)
        else:
            a = p + "linear_attn."
            lin(a + "in_proj_qkv", 2 * kd + vd, H, H**-0.5)
            lin(a + "in_proj_z", vd, H, H**-0.5)
            lin(a + "in_proj_b", d["vh"], H, H**-0.5)
            lin(a + "in_proj_a", d["vh"], H, H**-0.5)
            lin(a + "out_proj", H, vd, 1.5 * vd**-0.5)
            # decay: memory lengths from ~2 tokens to hundreds, so that chunk boundaries and state carry matter
            A = np.exp(r.g.uniform(np.log(0.02), np.log(4.0), d["vh"])).astype(np.float32)
            al = torch.from_numpy(np.log(A)).to(DT[o.get("a_dt", "f32")])
            T[a + "A_log"] = al
            W[hf_name(a + "A_log")] = al.float()
            db = torch.from_numpy(r.g.uniform(-4, 1, d["vh"]).astype(np.float32)).to(DT[dt])
            T[a + "dt_bias"] = db
            W[hf_name(a + "dt_bias")] = db.float()
            # v channels are larger so that the delta-rule output is well above the eps of its RMSNorm (random q.k is ~1/sqrt(dk), unlike a
            # trained model); the vscale=1 case keeps the output so small that eps itself is tested
            cw = r.g.standard_normal((2 * kd + vd, 4)) * 0.5
            cw[2 * kd :] *= o.get("vscale", 4.0)
            cw = torch.from_numpy(cw.astype(np.float32)).to(DT[dt])
            T[a + "conv1d.weight"] = cw[:, None, :].contiguous() if hf else cw[:, :, None].contiguous()
            W[hf_name(a + "conv1d.weight")] = cw.float()[:, None, :]
            norm(a + "norm", d["ldv"], shifted=False)
        mlp(p)
    norm(L + "norm", H, 2.5 if o["tied"] else 1.0, 0.4)
    if not o["tied"]:
        lin("language_model.lm_head", V, H, 3.0 * H**-0.5)
    if o.get(
        "mtp"
    ):  # multi-token-prediction head: an ordinary engine must ignore it (and must not let it flip the norm convention)
        m = "language_model.mtp."
        lin(m + "fc", H, 2 * H, (2 * H) ** -0.5)
        norm(m + "pre_fc_norm_embedding", H)
        norm(m + "pre_fc_norm_hidden", H)
        norm(m + "norm", H)
        p = m + "layers.0."
        norm(p + "input_layernorm", H)
        norm(p + "post_attention_layernorm", H)
        attn(p)
        mlp(p)
        W = {k: v for k, v in W.items() if not k.startswith("mtp.")}
        qn = [n for n in qn if ".mtp." not in n]
    if o.get("vision"):
        v = d["vis"]
        D = v["hidden"]
        q4 = o["vision"] == "q4"

        def vlin(name, n, k, std):
            ok = q4 and k % 64 == 0
            if ok:
                cfg["quantization"][name] = {"group_size": 64, "bits": 4}
            lin(
                name, n, k, std, bias=True, force={"bits": 4, "group_size": 64, "kind": "affine"} if ok else None
            ) if ok else dense(name, n, k, std)

        def dense(name, n, k, std):
            w = r.normal((n, k), std, dt)
            T[name + ".weight"] = w
            W[hf_name(name + ".weight")] = w.float()
            b = r.normal((n,), 0.1, dt)
            T[name + ".bias"] = b
            W[hf_name(name + ".bias")] = b.float()

        def ln(name, n):
            w = r.normal((n,), 0.2, dt, 1.0)
            b = r.normal((n,), 0.1, dt)
            T[name + ".weight"], T[name + ".bias"] = w, b
            W[hf_name(name + ".weight")], W[hf_name(name + ".bias")] = w.float(), b.float()

        vt = "vision_tower."
        pw = r.normal((D, 3, 2, 16, 16), 1.5 * (3 * 2 * 256) ** -0.5, dt)
        pb = r.normal((D,), 0.1, dt)
        T[vt + "patch_embed.proj.weight"] = pw.permute(0, 2, 3, 4, 1).contiguous()
        T[vt + "patch_embed.proj.bias"] = pb
        W["model.visual.patch_embed.proj.weight"] = pw.float()
        W["model.visual.patch_embed.proj.bias"] = pb.float()
        pe = r.normal((v["npos"], D), 0.5, dt)
        T[vt + "pos_embed.weight"] = pe
        W["model.visual.pos_embed.weight"] = pe.float()
        for i in range(v["depth"]):
            b = f"{vt}blocks.{i}."
            ln(b + "norm1", D)
            ln(b + "norm2", D)
            vlin(b + "attn.qkv", 3 * D, D, 1.5 * D**-0.5)
            vlin(b + "attn.proj", D, D, D**-0.5)
            vlin(b + "mlp.linear_fc1", v["ffn"], D, D**-0.5)
            vlin(b + "mlp.linear_fc2", D, v["ffn"], v["ffn"] ** -0.5)
        ln(vt + "merger.norm", D)
        vlin(vt + "merger.linear_fc1", 4 * D, 4 * D, (4 * D) ** -0.5)
        vlin(vt + "merger.linear_fc2", H, 4 * D, (4 * D) ** -0.5)
    if hf:
        T = {
            hf_name(k) if not k.startswith("language_model.mtp") else k[len("language_model.") :]: v
            for k, v in T.items()
        }
    return T, W, qn


def hf_model(cfg, W, tied):
    hc = json.loads(json.dumps({k: v for k, v in cfg.items() if k not in ("quantization", "quantization_config")}))
    hcfg = Qwen3_5Config(**hc)
    hcfg._attn_implementation = "eager"
    hcfg.text_config._attn_implementation = "eager"
    hcfg.vision_config._attn_implementation = "eager"
    hcfg.text_config.dtype = None
    hcfg.dtype = None
    model = Qwen3_5ForConditionalGeneration(hcfg).float().eval()
    miss, unexp = model.load_state_dict(W, strict=False)
    bad = [m for m in miss if not (m.startswith("model.visual") or (tied and m == "lm_head.weight"))]
    assert not unexp and not bad, (bad, unexp)
    model.tie_weights()
    if tied:
        assert model.lm_head.weight.data_ptr() == model.model.language_model.embed_tokens.weight.data_ptr()
    return model


def write_side_files(out, d, o, ids):
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
    json.dump(
        {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        open(out + "/preprocessor_config.json", "w"),
        indent=1,
    )


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
        d = dims_for(a.dims, o)
        out = os.path.join(a.out, name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        ids, n_text, _ = make_tokenizer(out, d["merges"], d["vocab"], "qwen3_5", 262144, template_inline=False)
        cfg = config_json(d, o, ids)
        T, W, qn = build(d, o, cfg, a.seed * 2000 + ci)
        json.dump(cfg, open(out + "/config.json", "w"), indent=2)
        write_side_files(out, d, o, ids)
        write_model(out, T, 1, {"format": "pt"} if o.get("hf_layout") else {"format": "mlx"})
        model = hf_model(cfg, W, o["tied"])
        lm = model.model.language_model
        mods = [hf_name(n + ".weight")[:-7] for n in qn if "embed_tokens" not in n and "vision" not in n] + (
            ["lm_head"] if o["tied"] else []
        )
        if o.get("hf_layout"):
            mods = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "visual" not in n]
        X, info = lm_expected(model, lm, d["vocab"], n_text, a.seed * 100 + ci, mods, recurrent=True)
        info.update(
            {
                "case": name,
                "family": "qwen3_5",
                "dims": d,
                "opts": o,
                "seed": a.seed,
                "reference": "transformers Qwen3_5ForConditionalGeneration float32 eager (torch chunked delta rule for prompts, recurrent for single tokens)",
                "tokenizer": tokenizer_expected(out, "qwen3_5"),
            }
        )
        write_expected(out, X, info)
        g = info["greedy"]
        print(
            f"{name:24s} {dir_size(out) / 1e6:.2f}MB std {info['logit_std']:.2f} margins {[round(g[k]['min_margin'], 3) for k in g]} distinct {[g[k]['distinct'] for k in g]} "
            f"cons {max(info['consistency'].values()):.1e} f64 {info['f64_vs_f32']['max_abs']:.1e} | int8 max {info['int8_act_sim_g128']['max_abs']:.3f} rel {info['int8_act_sim_g128']['rel_rms']:.4f} kl {info['int8_act_sim_g128']['kl_mean']:.1e} top1 {info['int8_act_sim_g128']['top1_agree']:.3f} ({time.time() - t0:.0f}s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
