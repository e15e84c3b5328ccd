"""Unselected samples from a pack at fixed seeds.   python sample.py PACK_DIR OUT.txt [NEW_TOKENS]"""
import json
import sys

import torch
import torch.nn.functional as F

import export
import model as M

PROMPTS = ["Tell me about the sea.", "Tell me a story about a small fox.", "What is the moon?", "How can I sleep better?", "Hello! Who are you?", "Why do birds sing?", "Write a short story about a lost key.",
           "What is 23 + 45?", "Give me three facts about elephants.", "I feel sad today. What should I do?", "Write a short poem about autumn.", "How do I bake bread?", "What is the difference between a cat and a dog?",
           "Anna has a red ball and Tom has a blue kite. They play in the park. What color is the ball?", "List five fruits.", "Explain gravity in simple words.", "Write a short email to my teacher to say thank you.",
           "Can you recommend a hobby?", "What makes a good friend?", "Describe a day at the beach."]


class Decoder:
    """One token at a time in f32, with the recurrent states and the key/value cache of one sequence."""

    def __init__(self, m):
        self.m, self.c = m, m.c
        c = m.c
        self.p = {n: t.detach() for n, t in m.p.items()}
        self.state = [None if c.is_full(i) else (torch.zeros(2 * c.lk_heads * c.lk_dim + c.lv_heads * c.lv_dim, c.conv), torch.zeros(c.lv_heads, c.lk_dim, c.lv_dim)) for i in range(c.layers)]
        self.kv = [([], []) if c.is_full(i) else None for i in range(c.layers)]
        self.t = 0

    def rms(self, x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c.eps) * w

    def gdn(self, i, u):
        c, P = self.c, lambda n: self.p[f"model.layers.{i}.linear_attn.{n}"]
        conv, S = self.state[i]
        conv = torch.cat([conv[:, 1:], (P("in_proj_qkv") @ u)[:, None]], 1)
        y = F.silu((conv * P("conv1d.weight")).sum(1))
        K = c.lk_heads * c.lk_dim
        q, k, v = y[:K].view(c.lk_heads, -1), y[K : 2 * K].view(c.lk_heads, -1), y[2 * K :].view(c.lv_heads, -1)
        r = c.lv_heads // c.lk_heads
        q, k = (M.l2(q) * c.lk_dim**-0.5).repeat_interleave(r, 0), M.l2(k).repeat_interleave(r, 0)
        g = -P("A_log").exp() * F.softplus(P("in_proj_a") @ u + P("dt_bias"))
        S = S * g.exp()[:, None, None]
        d = torch.sigmoid(P("in_proj_b") @ u)[:, None] * (v - (S * k[..., None]).sum(1))
        S = S + k[..., None] * d[:, None]
        o = (S * q[..., None]).sum(1)
        self.state[i] = (conv, S)
        o = self.rms(o, P("norm.weight")) * F.silu((P("in_proj_z") @ u).view(c.lv_heads, -1))
        return P("out_proj") @ o.reshape(-1)

    def attn(self, i, u):
        c, P = self.c, lambda n: self.p[f"model.layers.{i}.self_attn.{n}"]
        qg = (P("q_proj") @ u).view(c.heads, -1)
        q, gate = qg[:, : c.head_dim], qg[:, c.head_dim :]
        k, v = (P("k_proj") @ u).view(c.kv_heads, -1), (P("v_proj") @ u).view(c.kv_heads, -1)
        cos, sin = self.m.rope_tables(2048)
        rot = lambda x: M.rope(x[:, None], cos[self.t : self.t + 1], sin[self.t : self.t + 1])[:, 0]
        q, k = rot(self.rms(q, P("q_norm.weight"))), rot(self.rms(k, P("k_norm.weight")))
        ks, vs = self.kv[i]
        ks.append(k); vs.append(v)
        r = c.heads // c.kv_heads
        K, V = torch.stack(ks, 1).repeat_interleave(r, 0), torch.stack(vs, 1).repeat_interleave(r, 0)
        w = torch.softmax((K @ q[..., None])[..., 0] * c.head_dim**-0.5, -1)
        o = (w[:, None] @ V)[:, 0] * torch.sigmoid(gate)
        return P("o_proj") @ o.reshape(-1)

    @torch.no_grad()
    def step(self, tok):
        x = self.p["model.embed_tokens"][tok]
        for i in range(self.c.layers):
            pre = f"model.layers.{i}."
            u = self.rms(x, self.p[pre + "input_layernorm.weight"])
            x = x + (self.attn(i, u) if self.c.is_full(i) else self.gdn(i, u))
            u = self.rms(x, self.p[pre + "post_attention_layernorm.weight"])
            x = x + self.p[pre + "mlp.down_proj"] @ (F.silu(self.p[pre + "mlp.gate_proj"] @ u) * (self.p[pre + "mlp.up_proj"] @ u))
        self.t += 1
        self.hidden = x
        return self.p["lm_head"] @ self.rms(x, 1.0)


def pick(logits, gen, temp, top_k, top_p):
    if temp == 0:
        return int(logits.argmax())
    v, i = torch.topk(logits / temp, top_k)
    p = torch.softmax(v, -1)
    keep = (p.cumsum(0) - p) < top_p
    p = p * keep
    return int(i[torch.multinomial(p / p.sum(), 1, generator=gen)])


def generate(m, tok, text, seed, n=200, temp=0.6, top_k=20, top_p=0.9):
    d = Decoder(m)
    for t in tok.encode(text).ids:
        logits = d.step(t)
    gen = torch.Generator().manual_seed(seed)
    out = []
    stop = {tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")}
    while len(out) < n:
        t = pick(logits, gen, temp, top_k, top_p)
        if t in stop:
            break
        out.append(t)
        logits = d.step(t)
    return tok.decode(out, skip_special_tokens=False)


def main():
    from tokenizers import Tokenizer

    path, out = sys.argv[1], sys.argv[2]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    m = export.read_pack(path)
    tok = Tokenizer.from_file(path + "/tokenizer.json")
    g = json.load(open(path + "/generation_config.json"))
    with open(out, "w", encoding="utf-8") as f:
        f.write(f"Twenty unselected samples, one try each, seed = number, at most {n} tokens.\nTemperature {g['temperature']}, top_k {g['top_k']}, top_p {g['top_p']}; plain PyTorch f32 (sample.py).\n")
        for i, q in enumerate(PROMPTS):
            a = generate(m, tok, f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", i + 1, n, g["temperature"], g["top_k"], g["top_p"])
            f.write(f"\n--- {i + 1}\n> {q}\n{a}\n")
            f.flush()


if __name__ == "__main__":
    main()
