"""Shared helpers for the golden-case generators.

On-disk packing (checked against real mlx in check_mlx_packing.py):
  * codes q (unsigned, b bits) are packed along the LAST axis into uint32 words, element 0 in the
    lowest bits: word = sum_i q[i] << (b*i), 32/b elements a word (b in 1,2,4,8).
  * `<name>.weight` uint32 [N, K*b/32], `<name>.scales`/`<name>.biases` [N, K/group_size].
  * w[n,k] = scales[n,k//gs]*q[n,k] + biases[n,k//gs]   (reference: evaluated in float32)
  * 1-bit symmetric: w=+-s, scale=2s, bias=-s (bit 0 -> -s, bit 1 -> +s).
  * ternary: q in {0,1,2} -> -s,0,+s, scale=s, bias=-s (code 3 unused).
"""

import json, os, math, hashlib
import numpy as np
import torch
from safetensors.torch import save_file

torch.set_num_threads(int(os.environ.get("GT", "1")))
DT = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
PROMPT_LENS = (1, 7, 64, 65, 130, 200)
GREEDY = 32


# ------------------------------------------------------------------ packing
def pack_codes(q, bits):
    q = np.asarray(q, dtype=np.uint32)
    per = 32 // bits
    assert q.shape[-1] % per == 0, q.shape
    r = q.reshape(*q.shape[:-1], q.shape[-1] // per, per)
    w = np.zeros(r.shape[:-1], dtype=np.uint32)
    for i in range(per):
        w |= r[..., i] << np.uint32(bits * i)
    return w


def unpack_codes(w, bits):
    per = 32 // bits
    sh = np.arange(per, dtype=np.uint32) * np.uint32(bits)
    q = (w[..., None] >> sh) & np.uint32((1 << bits) - 1)
    return q.reshape(*w.shape[:-1], w.shape[-1] * per)


class Q:
    """A quantized matrix: codes + scales + biases (torch tensors of the storage dtype)."""

    def __init__(self, codes, scales, biases, bits, gs):
        self.codes, self.scales, self.biases, self.bits, self.gs = codes, scales, biases, bits, gs

    def dequant(self):
        q = torch.from_numpy(self.codes.astype(np.float32))
        s = self.scales.float().repeat_interleave(self.gs, dim=-1)
        b = self.biases.float().repeat_interleave(self.gs, dim=-1)
        return s * q + b

    def tensors(self, name):
        return {
            name + ".weight": torch.from_numpy(pack_codes(self.codes, self.bits)),
            name + ".scales": self.scales,
            name + ".biases": self.biases,
        }


class Rng:
    def __init__(self, seed):
        self.g = np.random.default_rng(seed)

    def scales(self, n, k, gs, base):
        """lognormal per-group magnitudes around `base`"""
        return (base * np.exp(0.30 * self.g.standard_normal((n, k // gs)))).astype(np.float32)

    def binary(self, n, k, gs, base, dt, affine=False):
        s = torch.from_numpy(self.scales(n, k, gs, base)).to(DT[dt])
        # column/row structure so that the projections are not featureless noise
        u = self.g.standard_normal((n, 3)) @ self.g.standard_normal((3, k)) * 0.5
        codes = ((u + self.g.standard_normal((n, k))) > 0).astype(np.uint8)
        scale = (s.float() * 2).to(DT[dt])
        bias = -s
        assert torch.equal(scale.float() / 2, s.float())
        if affine:  # genuinely affine: bias is NOT -scale/2
            d = torch.from_numpy((0.25 * self.g.standard_normal(s.shape)).astype(np.float32))
            bias = (-s.float() * (1 + d)).to(DT[dt])
        return Q(codes, scale, bias, 1, gs)

    def ternary(self, n, k, gs, base, dt):
        s = torch.from_numpy(self.scales(n, k, gs, base * 1.25)).to(DT[dt])
        u = self.g.standard_normal((n, 3)) @ self.g.standard_normal((3, k)) * 0.5 + self.g.standard_normal((n, k))
        codes = (1 + (u > 0.5).astype(np.int32) - (u < -0.5).astype(np.int32)).astype(np.uint8)
        return Q(codes, s, -s, 2, gs)

    def affine_n(self, n, k, gs, base, dt, bits):
        """ordinary b-bit affine quantization of a gaussian matrix by the real mx.quantize
        (mind: mlx picks NEGATIVE scales for many groups, with bias = the largest-magnitude edge)"""
        import mlx.core as mx

        w = (base * self.g.standard_normal((n, k))).astype(np.float32)
        mdt = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}[dt]
        q, s, b = mx.quantize(mx.array(w).astype(mdt), group_size=gs, bits=bits)
        f = lambda a: torch.from_numpy(np.array(a.astype(mx.float32))).to(DT[dt])
        return Q(unpack_codes(np.array(q), bits).astype(np.uint8), f(s), f(b), bits, gs)

    def quant(self, n, k, spec, base, dt):
        """spec: dict(bits, group_size, kind)"""
        b, gs = spec["bits"], spec["group_size"]
        if b == 1:
            return self.binary(n, k, gs, base, dt, affine=spec.get("affine", False))
        if b == 2 and spec.get("kind", "ternary") == "ternary":
            return self.ternary(n, k, gs, base, dt)
        return self.affine_n(n, k, gs, base, dt, b)

    def normal(self, shape, std, dt, mean=0.0):
        return torch.from_numpy((mean + std * self.g.standard_normal(shape)).astype(np.float32)).to(DT[dt])


# ------------------------------------------------------------------ tokenizer
SPECIALS = [
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
]
RE_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RE_QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LL = os.environ.get("LLAMA_CPP", "llama.cpp")  # the tree vendored in the llama-cpp-python sdist
CORPUS = [
    "The quick brown fox jumps over the lazy dog. The bonsai tree is small but the forest is large.",
    "def forward(self, x):\n    return self.proj(x) + x\n\nfor i in range(10):\n    print(i, i * i)\n",
    "It's a test, isn't it? They've said they'll go; we'd rather not. I'm here.",
    "In 2026, 1-bit models run on 4 cores with 128 groups: w = s * q + b.",
    "Les élèves étudient à l'école; größer, naïve, coöperate. 你好，世界！こんにちは。 привет мир",
    "the model the weights the scales the bits and the signs of the weights in the groups",
    "You are a helpful assistant. user system assistant tool",
]
TOK_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "The bonsai tree isn't large.",
    "  two  spaces\n\n\nand newlines \r\n\tend  ",
    "1234567890 3.14159",
    "naïve café — größer e\u0301 vs é",
    "你好，世界！",
    "🙂👩‍👩‍👧 emoji",
    "don't DON'T we'LL I'm",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "a<tool_call>b</tool_call><|image_pad|>",
    "हिन्दी टेक्स्ट",
    "\u00a0nbsp\u3000wide",
    "x = {'a': [1, 2, 3]}  # comment\n",
]


def make_tokenizer(out, n_merges, vocab_size, flavour, model_max=65536, template_inline=True):
    """tiny byte-level BPE with the Qwen special tokens; returns {token: id}"""
    from tokenizers import (
        Tokenizer,
        models,
        trainers,
        pre_tokenizers,
        decoders,
        normalizers,
        processors,
        AddedToken,
        Regex,
    )

    tok = Tokenizer(models.BPE(byte_fallback=False, fuse_unk=False))
    tok.normalizer = normalizers.NFC()
    rx = RE_QWEN35 if flavour == "qwen3_5" else RE_QWEN2
    pt = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rx), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tok.pre_tokenizer = pt
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tr = trainers.BpeTrainer(
        vocab_size=256 + n_merges,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tok.train_from_iterator(CORPUS * 3, tr)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    base = tok.get_vocab_size()
    for t, sp in SPECIALS:
        tok.add_tokens([AddedToken(t, special=sp, normalized=False)]) if not sp else tok.add_special_tokens(
            [AddedToken(t, special=True, normalized=False)]
        )
    ids = {t: tok.token_to_id(t) for t, _ in SPECIALS}
    assert tok.get_vocab_size() <= vocab_size, (tok.get_vocab_size(), vocab_size)
    os.makedirs(out, exist_ok=True)
    tok.save(os.path.join(out, "tokenizer.json"))
    tpl = open(
        LL
        + ("/models/templates/Qwen3.5-4B.jinja" if flavour == "qwen3_5" else "/models/templates/Qwen-Qwen3-0.6B.jinja")
    ).read()
    cfg = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(ids[t]): {
                "content": t,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": sp,
            }
            for t, sp in SPECIALS
        },
        "additional_special_tokens": [t for t, sp in SPECIALS[1:] if sp],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": model_max,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    if template_inline:
        cfg["chat_template"] = tpl
    else:
        open(os.path.join(out, "chat_template.jinja"), "w").write(tpl)
    json.dump(cfg, open(os.path.join(out, "tokenizer_config.json"), "w"), indent=2, ensure_ascii=False)
    return ids, base, tok


def tokenizer_expected(out, flavour):
    """encodings and chat-template renderings by HF AutoTokenizer loaded from the folder"""
    from transformers import PreTrainedTokenizerFast

    tcfg = json.load(open(os.path.join(out, "tokenizer_config.json")))
    t = PreTrainedTokenizerFast(tokenizer_file=os.path.join(out, "tokenizer.json"))
    t.chat_template = tcfg.get("chat_template") or open(os.path.join(out, "chat_template.jinja")).read()
    enc = []
    for s in TOK_TEXTS:
        ids = t.encode(s, add_special_tokens=False)
        enc.append(
            {
                "text": s,
                "ids": ids,
                "decoded": t.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
            }
        )
    chats = []
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather of a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]
    convs = [
        ([{"role": "user", "content": "Hello"}], {}),
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "2+2?"},
            ],
            {},
        ),
        ([{"role": "user", "content": "Hello"}], {"enable_thinking": False}),
        ([{"role": "user", "content": "Weather in Paris?"}], {"tools": tools}),
        (
            [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
                    ],
                },
                {"role": "tool", "content": "sunny"},
            ],
            {"tools": tools},
        ),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "<think>\nhm\n</think>\n\nanswer"},
                {"role": "user", "content": "again"},
            ],
            {},
        ),
    ]
    for m, kw in convs:
        try:
            text = t.apply_chat_template(m, tokenize=False, add_generation_prompt=True, **kw)
            chats.append({"messages": m, "kwargs": kw, "text": text, "ids": t.encode(text, add_special_tokens=False)})
        except Exception as e:  # template may refuse
            chats.append({"messages": m, "kwargs": kw, "error": repr(e)})
    return {"encode": enc, "chat": chats}


# ------------------------------------------------------------------ expected outputs of causal LMs
def fwd(model, ids=None, cache=None, use_cache=False, **kw):
    t = None if ids is None else torch.tensor([list(map(int, ids))], dtype=torch.long)
    with torch.no_grad():
        o = (
            model(input_ids=t, cache=cache, use_cache=use_cache, **kw)
            if cache is not None or use_cache
            else model(input_ids=t, use_cache=False, **kw)
        )
    return o


class HiddenTap:
    """records the residual stream: embedding output, each decoder layer's output, final norm output"""

    def __init__(self, lm):
        self.rec, self.h = [], []
        self.h.append(lm.embed_tokens.register_forward_hook(lambda m, i, o: self.rec.append(("emb", o[0].clone()))))
        for k, l in enumerate(lm.layers):
            self.h.append(
                l.register_forward_hook(
                    lambda m, i, o, k=k: self.rec.append((k, (o[0] if isinstance(o, tuple) else o)[0].clone()))
                )
            )
        self.h.append(lm.norm.register_forward_hook(lambda m, i, o: self.rec.append(("norm", o[0].clone()))))

    def take(self):
        r = [t for n, t in self.rec if n != "norm"]
        f = [t for n, t in self.rec if n == "norm"][-1]
        self.rec = []
        return torch.stack(r), f

    def close(self):
        for h in self.h:
            h.remove()


def greedy_decode(model, prompt, n, extra=None):
    """greedy with cache; returns ids, logits [n,V], margins"""
    o = fwd(model, prompt, use_cache=True, **(extra or {}))
    cache, lg = o.cache, o.logits[0, -1]
    ids, ls, mg = [], [], []
    for _ in range(n):
        t2 = torch.topk(lg, 2)
        ids.append(int(t2.indices[0]))
        ls.append(lg.clone())
        mg.append(float(t2.values[0] - t2.values[1]))
        o = fwd(model, [ids[-1]], cache=cache, use_cache=True)
        cache, lg = o.cache, o.logits[0, -1]
    return ids, torch.stack(ls), mg


def greedy_batch(model, prompts, n):
    """min top1-top2 margin and number of distinct tokens of the greedy continuation of each prompt (equal lengths)"""
    with torch.no_grad():
        o = model(input_ids=torch.tensor(prompts), use_cache=True)
        mins = torch.full((len(prompts),), 1e9)
        seen = [set() for _ in prompts]
        for _ in range(n):
            t2 = torch.topk(o.logits[:, -1], 2)
            mins = torch.minimum(mins, t2.values[:, 0] - t2.values[:, 1])
            nx = t2.indices[:, :1]
            for s, t in zip(seen, nx[:, 0].tolist()):
                s.add(t)
            o = model(input_ids=nx, cache=o.cache, use_cache=True)
    return mins.tolist(), [len(s) for s in seen]


def int8_fake_quant(x, gs=128):
    K = x.shape[-1]
    g = gs if K % gs == 0 else (64 if K % 64 == 0 else K)
    xs = x.reshape(*x.shape[:-1], K // g, g)
    s = xs.abs().amax(-1, keepdim=True) / 127.0
    q = torch.where(s > 0, torch.round(xs / s.clamp_min(1e-30)).clamp(-127, 127), torch.zeros_like(xs))
    return (q * s).reshape(x.shape)


def int8_hooks(model, names):
    hs = []
    mods = dict(model.named_modules())
    for n in names:
        hs.append(mods[n].register_forward_pre_hook(lambda m, a: (int8_fake_quant(a[0]),) + tuple(a[1:])))
    return hs


def err_stats(a, b):
    """a: reference logits [T,V], b: other"""
    a, b = a.double(), b.double()
    d = a - b
    pa, pb = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
    kl = (pa.exp() * (pa - pb)).sum(-1)
    cos = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    top2 = a.topk(2, -1).values
    mar = top2[:, 0] - top2[:, 1]
    same = a.argmax(-1) == b.argmax(-1)
    return {
        "max_abs": float(d.abs().max()),
        "rms": float(d.pow(2).mean().sqrt()),
        "rel_rms": float(d.pow(2).mean().sqrt() / a.pow(2).mean().sqrt()),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "cos_min": float(cos.min()),
        "cos_mean": float(cos.mean()),
        "top1_agree": float(same.double().mean()),
        "disagree_max_margin": float(mar[~same].max()) if (~same).any() else 0.0,
        "logit_std": float(a.std()),
        "logit_absmax": float(a.abs().max()),
    }


def lm_expected(
    model, lm, V, n_text, seed, qnames, hidden_lens=(7,), sel_len=65, greedy_from=(7, 65), recurrent=False, quick=False
):
    """Runs the reference; returns (tensors, info). n_text: ids below it are ordinary tokens."""
    g = np.random.default_rng(10_000 + seed)
    model.eval()
    T, info = {}, {"prompt_lens": list(PROMPT_LENS)}
    tap = HiddenTap(lm)
    allref = []
    for n in PROMPT_LENS:
        ids = g.integers(0, n_text, n).tolist()
        T[f"ids.{n}"] = torch.tensor(ids, dtype=torch.int32)
    # the prompts used for greedy are searched so that every step has a clear winner
    info["greedy"] = {}
    for n in greedy_from:
        cand = [T[f"ids.{n}"].tolist()] + [g.integers(0, n_text, n).tolist() for _ in range(23)]
        mins, dist = greedy_batch(model, cand, GREEDY)
        score = [m if d > 6 else m - 10 for m, d in zip(mins, dist)]
        ids = cand[int(np.argmax(score))]
        gi, gl, gm = greedy_decode(model, ids, GREEDY)
        tap.rec = []
        T[f"ids.{n}"] = torch.tensor(ids, dtype=torch.int32)
        T[f"greedy.ids.{n}"] = torch.tensor(gi, dtype=torch.int32)
        T[f"greedy.logits.{n}"] = gl.contiguous()
        info["greedy"][str(n)] = {
            "ids": gi,
            "min_margin": min(gm),
            "margins": [round(m, 4) for m in gm],
            "distinct": len(set(gi)),
        }
    for n in PROMPT_LENS:
        ids = T[f"ids.{n}"].tolist()
        lg = fwd(model, ids).logits[0]
        h, f = tap.take()
        T[f"logits.{n}"] = lg.contiguous()
        allref.append(lg)
        if n in hidden_lens:
            T[f"hidden.{n}"] = h.contiguous()
            T[f"final_norm.{n}"] = f.contiguous()
        if n == sel_len:
            pos = [0, n // 2, n - 2, n - 1]
            T[f"hidden_sel.{n}"] = h[:, pos].contiguous()
            T[f"hidden_sel_pos.{n}"] = torch.tensor(pos, dtype=torch.int32)
    tap.close()
    ref = torch.cat(allref)
    # self-consistency: one token at a time, and chunked prefill, against the whole-prompt forward
    cons = {}
    ids = T["ids.130"].tolist()
    cache, rows = None, []
    for t in ids:
        o = fwd(model, [t], cache=cache, use_cache=True)
        cache = o.cache
        rows.append(o.logits[0, -1])
    cons["token_by_token_130_max_abs"] = float((torch.stack(rows) - T["logits.130"]).abs().max())
    cache, rows = None, []
    for a, b in ((0, 64), (64, 65), (65, 130)):
        o = fwd(model, ids[a:b], cache=cache, use_cache=True)
        cache = o.cache
        rows.append(o.logits[0])
    cons["chunked_64_1_65_max_abs"] = float((torch.cat(rows) - T["logits.130"]).abs().max())
    for n in greedy_from:  # greedy logits vs a full forward on prompt+continuation
        full = fwd(model, T[f"ids.{n}"].tolist() + T[f"greedy.ids.{n}"].tolist()).logits[0][n - 1 : n - 1 + GREEDY]
        cons[f"greedy_cached_vs_full_{n}_max_abs"] = float((full - T[f"greedy.logits.{n}"]).abs().max())
    info["consistency"] = cons
    if recurrent:  # prefill 65, then 5 forced decode steps, with the recurrent state after prefill
        steps = T["greedy.ids.65"].tolist()[:5]
        o = fwd(model, T["ids.65"].tolist(), use_cache=True)
        cache = o.cache
        first = next(i for i, l in enumerate(lm.layers) if hasattr(l, "linear_attn"))
        T["state.conv.after65.layer%d" % first] = cache.get_conv_state(first, state_idx=0)[0].clone().contiguous()
        T["state.rec.after65.layer%d" % first] = cache.get_recurrent_state(first, state_idx=0)[0].clone().contiguous()
        rows = []
        for t in steps:
            o = fwd(model, [t], cache=cache, use_cache=True)
            cache = o.cache
            rows.append(o.logits[0, -1])
        T["decode5.ids"] = torch.tensor(steps, dtype=torch.int32)
        T["decode5.logits"] = torch.stack(rows).contiguous()
        info["state_note"] = (
            "state.rec is HF layout [v_heads, k_dim, v_dim] (mlx: [v_heads, v_dim, k_dim]); state.conv is HF layout "
            "[channels, window] holding the last raw (pre-convolution, pre-silu) in_proj_qkv columns in time order"
        )
    # float64 reference of the same weights: the float32 noise floor
    m64 = None
    try:
        m64 = model.double()
        r64 = torch.cat([fwd(m64, T[f"ids.{n}"].tolist()).logits[0] for n in PROMPT_LENS])
        info["f64_vs_f32"] = err_stats(r64, ref)
    finally:
        model.float()
    # int8 activation simulation
    hs = int8_hooks(model, qnames)
    r8 = torch.cat([fwd(model, T[f"ids.{n}"].tolist()).logits[0] for n in PROMPT_LENS])
    for h in hs:
        h.remove()
    info["int8_act_sim_g128"] = err_stats(ref, r8)
    # bf16/f16 rounding of the same inputs, for comparison (what an f16-activation engine such as mlx shows)
    info["logit_std"] = float(ref.std())
    return T, info


# ------------------------------------------------------------------ writing
def write_model(out, tensors, shards=1, meta={"format": "mlx"}):
    os.makedirs(out, exist_ok=True)
    tensors = {k: v.contiguous() for k, v in tensors.items()}
    names = sorted(tensors)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    wm = {}
    if shards == 1:
        save_file(tensors, os.path.join(out, "model.safetensors"), metadata=meta)
        wm = {n: "model.safetensors" for n in names}
    else:
        per = math.ceil(len(names) / shards)
        for i in range(shards):
            f = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            part = names[i * per : (i + 1) * per]
            save_file({n: tensors[n] for n in part}, os.path.join(out, f), metadata=meta)
            wm.update({n: f for n in part})
    json.dump(
        {"metadata": {"total_size": total}, "weight_map": wm},
        open(os.path.join(out, "model.safetensors.index.json"), "w"),
        indent=1,
    )


def write_expected(out, T, info):
    save_file({k: v.contiguous() for k, v in T.items()}, os.path.join(out, "expected.safetensors"))
    json.dump(info, open(os.path.join(out, "expected.json"), "w"), indent=1, ensure_ascii=False)


def dir_size(d):
    return sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(d) for f in fs)
