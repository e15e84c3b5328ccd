"""The pack: folders as the published image packs have them."""
import json
import os
import struct

import torch

import nets as N
import quant
import words

KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int32: "U32", torch.int64: "I64"}


def save(path, tensors):
    """A safetensors file; codes are stored as int32 and named U32."""
    head, at, data = {"__metadata__": {"format": "mlx"}}, 0, []
    for name, t in sorted(tensors.items()):
        t = t.detach().cpu().contiguous()
        raw = t.reshape(-1).view(torch.uint8).numpy().tobytes()
        head[name] = {"dtype": KINDS[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load(path):
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "U32": torch.int32, "I64": torch.int64}
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, body = json.loads(f.read(n)), f.read()
    out = {}
    for name, entry in head.items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            out[name] = torch.frombuffer(bytearray(body[a:b]), dtype=types[entry["dtype"]]).view(entry["shape"])
    return out


def packed(code, bits):
    """Codes along a row into words, the first in the lowest bits."""
    per = 32 // bits
    c = code.long().view(code.shape[0], -1, per)
    word = (c << (bits * torch.arange(per, device=c.device))).sum(2)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def unpacked(word, bits):
    at = bits * torch.arange(32 // bits)
    return ((word.long()[..., None] >> at) & (2**bits - 1)).flatten(1)


def tensors(weights, bits_of):
    """Latent weights -> tensors of the pack."""
    out = {}
    for name, w in weights.items():
        bits = bits_of(name)
        if w.dim() == 1 or bits == 16:
            out[name] = w.to(torch.bfloat16)
            continue
        code, scale, offset = quant.codes(w.float(), bits)
        base = name.removesuffix(".weight")
        out[name] = packed(code, bits)
        out[base + ".scales"], out[base + ".biases"] = scale.to(torch.bfloat16), offset.to(torch.bfloat16)
    return out


def restored(pack, bits_of):
    """Tensors of a pack -> weights in f32."""
    out = {}
    for name, t in pack.items():
        base = name.removesuffix(".weight")
        if base + ".scales" in pack:
            out[name] = quant.values(unpacked(t, bits_of(name)).float(), pack[base + ".scales"].float(), pack[base + ".biases"].float())
        elif name.endswith(".weight"):
            out[name] = t.float()
    return out


def write_json(folder, name, value, **how):
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{name}", "w") as f:
        json.dump(value, f, **how)
        f.write("\n")


def transformer(folder, weights, bits):
    sub = f"{folder}/transformer-packed-mflux"
    os.makedirs(sub, exist_ok=True)
    made = tensors(weights, lambda name: N.transformer_bits(name, bits))
    save(f"{sub}/diffusion_pytorch_model.safetensors", made)
    write_json(sub, "config.json", {
        "_class_name": "Flux2Transformer2DModel", "attention_head_dim": N.DIM, "axes_dims_rope": list(N.AXES), "eps": 1e-06,
        "guidance_embeds": False, "in_channels": N.CHANNELS, "joint_attention_dim": 3 * N.T_HIDDEN, "mlp_ratio": float(N.RATIO),
        "num_attention_heads": N.HEADS, "num_layers": N.DOUBLE, "num_single_layers": N.SINGLE, "out_channels": None, "patch_size": 1,
        "rope_theta": int(N.THETA), "timestep_guidance_channels": N.TIME}, indent=1)
    write_json(sub, "quantization_config.json", {
        "bits": bits, "group_size": 128, "mode": "affine", "scale_dtype": "bfloat16", "skip_patterns": list(N.DENSE)}, indent=1)


def decoder(folder, vae):
    sub = f"{folder}/vae"
    keep = lambda n: n.startswith(("decoder.", "post_quant_conv.", "bn.running"))
    tensors = {n: t.to(torch.bfloat16) for n, t in vae.state_dict().items() if keep(n)}
    write_json(sub, "config.json", {
        "_class_name": "AutoencoderKLFlux2", "act_fn": "silu", "batch_norm_eps": 0.0001, "batch_norm_momentum": 0.1,
        "block_out_channels": list(N.WIDTHS[::-1]), "down_block_types": ["DownEncoderBlock2D"] * 4, "force_upcast": True, "in_channels": 3,
        "latent_channels": N.LATENT, "layers_per_block": N.RESNETS - 1, "mid_block_add_attention": True, "norm_num_groups": N.GROUPS,
        "out_channels": 3, "patch_size": [2, 2], "sample_size": 128, "up_block_types": ["UpDecoderBlock2D"] * 4,
        "use_post_quant_conv": True, "use_quant_conv": True}, indent=1)
    save(f"{sub}/diffusion_pytorch_model.safetensors", tensors)


def shared(folder, name, bits, encoder, vae):
    """All but the transformer."""
    sub = f"{folder}/text_encoder-mlx-4bit"
    q4 = {"group_size": 64, "bits": 4}
    write_json(sub, "config.json", {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": words.PAD,
        "dtype": "bfloat16", "eos_token_id": words.VOCAB["<|im_end|>"], "head_dim": N.T_DIM, "hidden_act": "silu",
        "hidden_size": N.T_HIDDEN, "intermediate_size": N.T_INNER, "max_position_embeddings": 64, "max_window_layers": N.LAYERS,
        "model_type": "qwen3", "num_attention_heads": N.T_HEADS, "num_hidden_layers": N.LAYERS, "num_key_value_heads": N.T_KV,
        "quantization": q4, "quantization_config": q4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": int(N.T_THETA),
        "sliding_window": None, "tie_word_embeddings": True, "use_cache": True, "use_sliding_window": False, "vocab_size": words.SIZE,
    }, indent=1)
    save(f"{sub}/model.safetensors", tensors(encoder, lambda _: 4))

    decoder(folder, vae)
    write_json(f"{folder}/tokenizer", "tokenizer.json", words.tokenizer_json(), separators=(",", ":"))
    write_json(f"{folder}/tokenizer", "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 64, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}, indent=1)
    write_json(f"{folder}/scheduler", "scheduler_config.json", {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": False,
        "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 3.0, "shift_terminal": None,
        "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False, "use_dynamic_shifting": True,
        "use_exponential_sigmas": False, "use_karras_sigmas": False}, indent=1)
    write_json(folder, "manifest.json", {"name": name, "bits": bits, "components": {
        "transformer": "transformer-packed-mflux", "text_encoder": "text_encoder-mlx-4bit", "vae": "vae", "tokenizer": "tokenizer",
        "scheduler": "scheduler"}}, indent=1)
