"""The published sizes: their hyperparameters and every tensor, under its GGUF name and its MLX name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    theta: float
    # Context before YaRN x4; 0 for no YaRN.
    original_context: int
    # `<|endoftext|>`; `<|im_start|>` and `<|im_end|>` follow it.
    end_of_text: int
    hybrid: bool = False

    @property
    def context(self):
        return 262_144 if self.hybrid else 4 * self.original_context


SHAPES = {
    s.name: s
    for s in [
        Shape("bonsai-1.7b", 28, 2048, 6144, 16, 8, 128, 151_669, True, 1e6, 8192, 151_643),
        Shape("bonsai-8b", 36, 4096, 12_288, 32, 8, 128, 151_669, False, 1e6, 16_384, 151_643),
        Shape("bonsai-27b", 64, 5120, 17_408, 24, 4, 256, 248_320, False, 1e7, 0, 248_044, hybrid=True),
    ]
}

# The delta-rule layers of the 27B.
KEY_HEADS, VALUE_HEADS, DELTA_DIM, KERNEL = 16, 48, 128, 4


@dataclass(frozen=True)
class Tensor:
    gguf: str
    mlx: str
    # (rows, columns) of a packed matrix, or the dimensions of a dense tensor, slowest first.
    dims: tuple
    # The value of every element of a dense tensor; None for random packed weights.
    fill: float | None = None


def tensors(s):
    """Every tensor of the model, in file order."""
    yield Tensor("token_embd.weight", "model.embed_tokens", (s.vocab, s.hidden))
    for i in range(s.layers):
        for t in hybrid_mixer(s) if s.hybrid and i % 4 != 3 else attention(s):
            yield Tensor(f"blk.{i}.{t.gguf}", f"model.layers.{i}.{t.mlx}", t.dims, t.fill)
        for t in mlp(s):
            yield Tensor(f"blk.{i}.{t.gguf}", f"model.layers.{i}.{t.mlx}", t.dims, t.fill)
    yield Tensor("output_norm.weight", "model.norm.weight", (s.hidden,), 1.0)
    if not s.tied:
        yield Tensor("output.weight", "lm_head", (s.vocab, s.hidden))


def attention(s):
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    # The hybrid's query heads carry a gate each.
    query_rows = 2 * queries if s.hybrid else queries
    return [
        Tensor("attn_norm.weight", "input_layernorm.weight", (s.hidden,), 1.0),
        Tensor("attn_q.weight", "self_attn.q_proj", (query_rows, s.hidden)),
        Tensor("attn_k.weight", "self_attn.k_proj", (keys, s.hidden)),
        Tensor("attn_v.weight", "self_attn.v_proj", (keys, s.hidden)),
        Tensor("attn_output.weight", "self_attn.o_proj", (s.hidden, queries)),
        Tensor("attn_q_norm.weight", "self_attn.q_norm.weight", (s.head_dim,), 1.0),
        Tensor("attn_k_norm.weight", "self_attn.k_norm.weight", (s.head_dim,), 1.0),
    ]


def hybrid_mixer(s):
    keys, values = KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM
    channels = 2 * keys + values
    return [
        Tensor("attn_norm.weight", "input_layernorm.weight", (s.hidden,), 1.0),
        Tensor("attn_qkv.weight", "linear_attn.in_proj_qkv", (channels, s.hidden)),
        Tensor("attn_gate.weight", "linear_attn.in_proj_z", (values, s.hidden)),
        Tensor("ssm_beta.weight", "linear_attn.in_proj_b", (VALUE_HEADS, s.hidden)),
        Tensor("ssm_alpha.weight", "linear_attn.in_proj_a", (VALUE_HEADS, s.hidden)),
        Tensor("ssm_conv1d.weight", "linear_attn.conv1d.weight", (channels, KERNEL), 0.25),
        # GGUF stores -exp(A_log).
        Tensor("ssm_a", "linear_attn.A_log", (VALUE_HEADS,), -1.0),
        Tensor("ssm_dt.bias", "linear_attn.dt_bias", (VALUE_HEADS,), -2.0),
        Tensor("ssm_norm.weight", "linear_attn.norm.weight", (DELTA_DIM,), 1.0),
        Tensor("ssm_out.weight", "linear_attn.out_proj", (s.hidden, values)),
    ]


def mlp(s):
    norm = "post_attention_norm.weight" if s.hybrid else "ffn_norm.weight"
    return [
        Tensor(norm, "post_attention_layernorm.weight", (s.hidden,), 1.0),
        Tensor("ffn_gate.weight", "mlp.gate_proj", (s.ffn, s.hidden)),
        Tensor("ffn_up.weight", "mlp.up_proj", (s.ffn, s.hidden)),
        Tensor("ffn_down.weight", "mlp.down_proj", (s.hidden, s.ffn)),
    ]


def vocabulary(s):
    """Tokens and their GGUF kinds: the 256 bytes, one merged pair, and fillers up to the size of the matrix."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    symbols = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [symbols[b] for b in range(256)] + ["ab"]
    tokens += [f"filler{i}" for i in range(len(tokens), s.vocab)]
    kinds = [1] * s.vocab
    for i, text in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]):
        tokens[s.end_of_text + i], kinds[s.end_of_text + i] = text, 3
    return tokens, kinds
