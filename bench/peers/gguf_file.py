"""Writes a GGUF file of a published shape: random Q1_0 blocks, constant norms, a made-up vocabulary."""

import random
import struct
from array import array

from shapes import DELTA_DIM, KERNEL, KEY_HEADS, VALUE_HEADS, tensors, vocabulary

ALIGNMENT = 32
F32, Q1_0 = 0, 41
# One Q1_0 block: a binary16 scale and the signs of 128 weights.
BLOCK, BLOCK_BYTES = 128, 18
# Blocks made and written at once.
CHUNK = 1 << 19

# Value kinds of GGUF metadata.
U32, I32, FLOAT, STRING, ARRAY = 4, 5, 6, 8, 9

# Servers want one for messages.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def metadata(s):
    arch = "qwen35" if s.hybrid else "qwen3"
    tokens, kinds = vocabulary(s)
    yield "general.architecture", STRING, arch
    yield "general.name", STRING, f"{s.name}, random weights"
    yield "general.file_type", U32, 40
    yield "general.quantization_version", U32, 2
    own = [
        ("block_count", U32, s.layers),
        ("context_length", U32, s.context),
        ("embedding_length", U32, s.hidden),
        ("feed_forward_length", U32, s.ffn),
        ("attention.head_count", U32, s.heads),
        ("attention.head_count_kv", U32, s.kv_heads),
        ("attention.key_length", U32, s.head_dim),
        ("attention.value_length", U32, s.head_dim),
        ("attention.layer_norm_rms_epsilon", FLOAT, 1e-6),
        ("rope.freq_base", FLOAT, s.theta),
    ]
    if s.hybrid:
        own += [
            ("rope.dimension_count", U32, s.head_dim // 4),
            ("rope.dimension_sections", (ARRAY, I32), [11, 11, 10, 0]),
            ("ssm.conv_kernel", U32, KERNEL),
            ("ssm.state_size", U32, DELTA_DIM),
            ("ssm.group_count", U32, KEY_HEADS),
            ("ssm.time_step_rank", U32, VALUE_HEADS),
            ("ssm.inner_size", U32, VALUE_HEADS * DELTA_DIM),
            ("full_attention_interval", U32, 4),
        ]
    else:
        own += [
            ("rope.scaling.type", STRING, "yarn"),
            ("rope.scaling.factor", FLOAT, 4.0),
            ("rope.scaling.original_context_length", U32, s.original_context),
        ]
    for key, kind, value in own:
        yield f"{arch}.{key}", kind, value
    yield "tokenizer.ggml.model", STRING, "gpt2"
    yield "tokenizer.ggml.pre", STRING, "qwen35" if s.hybrid else "qwen2"
    yield "tokenizer.ggml.tokens", (ARRAY, STRING), tokens
    yield "tokenizer.ggml.token_type", (ARRAY, I32), kinds
    yield "tokenizer.ggml.merges", (ARRAY, STRING), ["a b"]
    yield "tokenizer.ggml.bos_token_id", U32, s.end_of_text
    yield "tokenizer.ggml.eos_token_id", U32, s.end_of_text + 2
    yield "tokenizer.chat_template", STRING, TEMPLATE


def encode(kind, value):
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f"}[kind], value)


def encode_pair(key, kind, value):
    head = encode(STRING, key)
    if isinstance(kind, tuple):
        element = kind[1]
        head += struct.pack("<IIQ", ARRAY, element, len(value))
        return head + b"".join(encode(element, v) for v in value)
    return head + struct.pack("<I", kind) + encode(kind, value)


def size_of(tensor):
    count = 1
    for d in tensor.dims:
        count *= d
    return count * 4 if tensor.fill is not None else count // BLOCK * BLOCK_BYTES


def file_size(s):
    """Bytes of the tensors, to see whether there is room."""
    return sum(size_of(t) for t in tensors(s))


def blocks(rng, count):
    data = bytearray(rng.randbytes(count * BLOCK_BYTES))
    # The high byte of the scales: all of them between 0.0098 and 0.0117, as in the published packs.
    data[1::BLOCK_BYTES] = b"\x21" * count
    return data


def write(s, path):
    rng = random.Random(1)
    pairs = [encode_pair(*m) for m in metadata(s)]
    entries, offset = [], 0
    for t in tensors(s):
        dims = t.dims[::-1]
        kind = F32 if t.fill is not None else Q1_0
        entries.append(encode(STRING, t.gguf) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        offset += -(-size_of(t) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(pairs)))
        out.write(b"".join(pairs) + b"".join(entries))
        out.write(bytes(-out.tell() % ALIGNMENT))
        for t in tensors(s):
            if t.fill is not None:
                out.write(array("f", [t.fill]) * (size_of(t) // 4))
            else:
                left = size_of(t) // BLOCK_BYTES
                while left:
                    count = min(left, CHUNK)
                    out.write(blocks(rng, count))
                    left -= count
            out.write(bytes(-out.tell() % ALIGNMENT))
