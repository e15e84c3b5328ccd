"""Writes an MLX folder of a published shape: random 1-bit affine weights in groups of 128, constant norms."""

import json
import random
import struct
from pathlib import Path

from gguf_file import CHUNK
from shapes import tensors, vocabulary

GROUP = 128
# Codes 0 and 1 stand for -0.01 and 0.01.
SCALE = struct.pack("<e", 0.02)
BIAS = struct.pack("<e", -0.01)


def config(s):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "vocab_size": s.vocab,
        "max_position_embeddings": s.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": s.theta,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": s.original_context,
        },
        "tie_word_embeddings": s.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": s.end_of_text,
        "eos_token_id": s.end_of_text + 2,
        "quantization": {"group_size": GROUP, "bits": 1},
    }


def stored(s):
    """Tensors as they lie in the file: name, type, shape, bytes, and the value to repeat (None for random bits)."""
    for t in tensors(s):
        if t.fill is not None:
            size = 2
            for d in t.dims:
                size *= d
            yield t.mlx, "F16", t.dims, size, struct.pack("<e", t.fill)
            continue
        rows, cols = t.dims
        yield f"{t.mlx}.weight", "U32", (rows, cols // 32), rows * cols // 8, None
        for leaf, value in [("scales", SCALE), ("biases", BIAS)]:
            yield f"{t.mlx}.{leaf}", "F16", (rows, cols // GROUP), rows * cols // GROUP * 2, value


def tokenizer(s):
    tokens, kinds = vocabulary(s)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": t, **plain, "special": True}
        for i, (t, kind) in enumerate(zip(tokens, kinds))
        if kind == 3
    ]
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {t: i for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind != 3},
            "merges": ["a b"],
        },
    }


def write(s, folder):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(s), indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(s)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2TokenizerFast"}))
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, kind, shape, size, _ in stored(s):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(1)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, size, value in stored(s):
            while size:
                count = min(size, CHUNK * 16)
                out.write(rng.randbytes(count) if value is None else value * (count // 2))
                size -= count
