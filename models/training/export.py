"""Writes the MLX affine pack (1-bit or 2-bit, group 128, F16) from latents, and reads it back for checks and sampling.

    python export.py CKPT_PREFIX OUT_DIR TEACHER.gguf      a complete pack directory from a checkpoint"""
import json
import os
import struct
import sys

import numpy as np
import torch

import model as M
import quant

PRE = "language_model."


def tensors(m, latent, mode):
    out = {}
    for name, shape in m.mats.items():
        o, n = m.span[name]
        x = latent[o : o + n].float().view(-1, 128)
        if mode == "binary":
            s = x.abs().mean(1).to(torch.bfloat16).float()
            code, bits, scale = (x >= 0).to(torch.uint8).cpu().numpy(), 1, 2 * s
        elif mode == "ternary":
            w = quant.ternary(latent[o : o + n].float()).view(-1, 128)
            s = w.abs().amax(1)
            code, bits, scale = (torch.sign(w) + 1).to(torch.uint8).cpu().numpy(), 2, s
        else:
            out[PRE + name + ".weight"] = ("BF16", list(shape), x.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
            continue
        code = code.reshape(shape[0], -1, 32 // bits).astype(np.uint32)
        words = (code << (np.arange(32 // bits, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
        g = [shape[0], shape[1] // 128]
        out[PRE + name + ".weight"] = ("U32", [shape[0], shape[1] * bits // 32], words.astype("<u4").tobytes())
        out[PRE + name + ".scales"] = ("F16", g, scale.half().cpu().numpy().tobytes())
        out[PRE + name + ".biases"] = ("F16", g, (-s).half().cpu().numpy().tobytes())
    dt = "F16" if mode != "dense" else "BF16"
    small = {n: m.p[n].detach().float().cpu() for n in m.smalls}
    small["model.norm.weight"] = torch.ones(m.c.hidden)
    for name, t in small.items():
        shape = list(t.shape)
        if name.endswith("conv1d.weight"):
            shape = [*shape, 1]
        if name.endswith("A_log"):
            out[PRE + name] = ("F32", shape, t.numpy().tobytes())
        else:
            raw = t.half().numpy() if dt == "F16" else t.to(torch.bfloat16).view(torch.int16).numpy()
            out[PRE + name] = (dt, shape, raw.tobytes())
    return out


def write_pack(path, m, latent, mode):
    ts = tensors(m, latent, mode)
    header, off = {"__metadata__": {"format": "mlx"}}, 0
    names = sorted(ts, key=lambda n: (-{"U32": 4, "F32": 4}.get(ts[n][0], 2), n))
    for n in names:
        dt, shape, raw = ts[n]
        header[n] = {"dtype": dt, "shape": shape, "data_offsets": [off, off + len(raw)]}
        off += len(raw)
    h = json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 16)
    os.makedirs(path, exist_ok=True)
    with open(path + "/model.safetensors.tmp", "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for n in names:
            f.write(ts[n][2])
    os.replace(path + "/model.safetensors.tmp", path + "/model.safetensors")
    with open(path + "/config.json", "w") as f:
        json.dump(config_json(m.c, mode), f, indent=2)
        f.write("\n")


def config_json(c, mode):
    q = {"group_size": 128, "bits": 1 if mode == "binary" else 2}
    end = c.vocab - 9  # <|endoftext|>
    half = c.rot // 2
    sec = [half - 2 * (half // 3), half // 3, half // 3] if half % 3 else [half // 3] * 3
    if half == 8:
        sec = [3, 3, 2]
    out = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "float16" if mode != "dense" else "bfloat16",
            "bos_token_id": end, "eos_token_id": end, "full_attention_interval": c.interval, "head_dim": c.head_dim, "hidden_act": "silu", "hidden_size": c.hidden,
            "initializer_range": 0.02, "intermediate_size": c.inter,
            "layer_types": ["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.layers)],
            "linear_conv_kernel_dim": c.conv, "linear_key_head_dim": c.lk_dim, "linear_num_key_heads": c.lk_heads, "linear_num_value_heads": c.lv_heads,
            "linear_value_head_dim": c.lv_dim, "mamba_ssm_dtype": "float32", "max_position_embeddings": 2048, "mlp_only_layers": [],
            "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_attention_heads": c.heads,
            "num_hidden_layers": c.layers, "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.eps, "tie_word_embeddings": False, "use_cache": True, "vocab_size": c.vocab,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": sec, "partial_rotary_factor": c.partial, "rope_theta": c.theta, "rope_type": "default"},
        },
        "tie_word_embeddings": False,
    }
    if mode != "dense":
        out["quantization"] = q
        out["quantization_config"] = dict(q)
    return out


def generation_json(c):
    end = c.vocab - 9
    return {"bos_token_id": end, "do_sample": True, "eos_token_id": [end + 2, end], "pad_token_id": end, "repetition_penalty": 1.1, "temperature": 0.6, "top_k": 20, "top_p": 0.9}


def read_pack(path, device="cpu", dtype=torch.float32):
    """-> Model with the pack's values"""
    j = json.load(open(path + "/config.json"))
    t = j["text_config"]
    c = M.Config(vocab=t["vocab_size"], hidden=t["hidden_size"], layers=t["num_hidden_layers"], inter=t["intermediate_size"], heads=t["num_attention_heads"], kv_heads=t["num_key_value_heads"],
                 head_dim=t["head_dim"], lk_heads=t["linear_num_key_heads"], lv_heads=t["linear_num_value_heads"], lk_dim=t["linear_key_head_dim"], lv_dim=t["linear_value_head_dim"],
                 theta=t["rope_parameters"]["rope_theta"], partial=t["rope_parameters"]["partial_rotary_factor"])
    m = M.Model(c, device, dtype)
    raw = open(path + "/model.safetensors", "rb").read()
    (n,) = struct.unpack("<Q", raw[:8])
    h = json.loads(raw[8 : 8 + n])
    np_t = {"U32": "<u4", "F16": "<f2", "F32": "<f4", "BF16": "<u2"}

    def get(name):
        e = h[PRE + name]
        a, b = e["data_offsets"]
        x = np.frombuffer(raw, np_t[e["dtype"]], offset=8 + n + a, count=(b - a) // np.dtype(np_t[e["dtype"]]).itemsize).reshape(e["shape"])
        if e["dtype"] == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        return x

    with torch.no_grad():
        for name, shape in m.mats.items():
            if PRE + name + ".scales" not in h:
                m.p[name].copy_(torch.from_numpy(get(name + ".weight").copy()))
                continue
            w = get(name + ".weight")
            bits = w.shape[1] * 32 // shape[1]
            per = 32 // bits
            q = ((w[..., None] >> (np.arange(per, dtype=np.uint32) * bits)) & ((1 << bits) - 1)).reshape(shape[0], -1, 128).astype(np.float32)
            v = q * get(name + ".scales").astype(np.float32)[..., None] + get(name + ".biases").astype(np.float32)[..., None]
            m.p[name].copy_(torch.from_numpy(v.reshape(shape)))
        for name in m.smalls:
            m.p[name].copy_(torch.from_numpy(get(name if name.endswith(("A_log", "dt_bias", ".weight")) else name + ".weight").astype(np.float32).reshape(m.p[name].shape)))
    return m


def finish(out, teacher):
    """the files beside the weights"""
    import tok
    from gguf import Gguf

    here = os.path.dirname(os.path.abspath(__file__))
    tj = tok.build(Gguf(teacher).meta)
    with open(out + "/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(tj, f, ensure_ascii=False, separators=(",", ":"))
    with open(out + "/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(tok.tokenizer_config(tj), f, indent=1, ensure_ascii=False)
        f.write("\n")
    c = json.load(open(out + "/config.json"))["text_config"]
    with open(out + "/generation_config.json", "w") as f:
        json.dump(generation_json(M.Config(vocab=c["vocab_size"])), f, indent=1)
        f.write("\n")
    with open(here + "/chat_template.jinja", encoding="utf-8") as f, open(out + "/chat_template.jinja", "w", encoding="utf-8") as g:
        g.write(f.read())


if __name__ == "__main__":
    import train

    pre, out, teacher = sys.argv[1:4]
    meta = json.load(open(pre + ".json"))
    m = M.Model(M.Config(**meta["config"]), "cpu", torch.float32)
    latent = train.load_latents(pre, m)
    write_pack(out, m, latent, meta["mode"])
    finish(out, teacher)
