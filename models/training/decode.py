"""Token-by-token decoding of a batch in f32 from a pack: recurrent states, key/value cache, optional repetition penalty."""
import torch
import torch.nn.functional as F

import model as M


class Decoder:
    def __init__(self, m, batch, length):
        c = self.c = m.c
        self.m, self.B, self.t = m, batch, 0
        self.p = {n: t.detach() for n, t in m.p.items()}
        ch = 2 * c.lk_heads * c.lk_dim + c.lv_heads * c.lv_dim
        z = torch.zeros
        self.state, self.kv = {}, {}
        for i in range(c.layers):
            if c.is_full(i):
                self.kv[i] = (z(batch, c.kv_heads, length, c.head_dim), z(batch, c.kv_heads, length, c.head_dim))
            else:
                self.state[i] = [z(batch, ch, c.conv), z(batch, c.lv_heads, c.lk_dim, c.lv_dim)]

    def rms(self, x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c.eps) * w

    def gdn(self, i, u):
        c, B, P = self.c, self.B, lambda n: self.p[f"model.layers.{i}.linear_attn.{n}"]
        st = self.state[i]
        st[0] = torch.cat([st[0][..., 1:], (u @ P("in_proj_qkv").t())[..., None]], -1)
        y = F.silu((st[0] * P("conv1d.weight")).sum(-1))
        K = c.lk_heads * c.lk_dim
        q, k, v = y[:, :K].view(B, c.lk_heads, -1), y[:, K : 2 * K].view(B, c.lk_heads, -1), y[:, 2 * K :].view(B, c.lv_heads, -1)
        r = c.lv_heads // c.lk_heads
        q, k = (M.l2(q) * c.lk_dim**-0.5).repeat_interleave(r, 1), M.l2(k).repeat_interleave(r, 1)
        g = -P("A_log").exp() * F.softplus(u @ P("in_proj_a").t() + P("dt_bias"))
        S = st[1] * g.exp()[..., None, None]
        d = torch.sigmoid(u @ P("in_proj_b").t())[..., None] * (v - torch.einsum("bhkv,bhk->bhv", S, k))
        S = st[1] = S + k[..., None] * d[..., None, :]
        o = self.rms(torch.einsum("bhkv,bhk->bhv", S, q), P("norm.weight")) * F.silu((u @ P("in_proj_z").t()).view(B, c.lv_heads, -1))
        return o.reshape(B, -1) @ P("out_proj").t()

    def attn(self, i, u):
        c, B, t, P = self.c, self.B, self.t, lambda n: self.p[f"model.layers.{i}.self_attn.{n}"]
        qg = (u @ P("q_proj").t()).view(B, c.heads, -1)
        q, gate = qg[..., : c.head_dim], qg[..., c.head_dim :]
        k, v = (u @ P("k_proj").t()).view(B, c.kv_heads, -1), (u @ P("v_proj").t()).view(B, c.kv_heads, -1)
        cos, sin = self.m.rope_tables(2048)
        rot = lambda x: M.rope(x[:, None], cos[t : t + 1], sin[t : t + 1])[:, 0]
        q, k = rot(self.rms(q, P("q_norm.weight"))), rot(self.rms(k, P("k_norm.weight")))
        kc, vc = self.kv[i]
        kc[:, :, t], vc[:, :, t] = k, v
        r = c.heads // c.kv_heads
        K, V = kc[:, :, : t + 1].repeat_interleave(r, 1), vc[:, :, : t + 1].repeat_interleave(r, 1)
        w = torch.softmax(torch.einsum("bhtd,bhd->bht", K, q) * c.head_dim**-0.5, -1)
        o = torch.einsum("bht,bhtd->bhd", w, V) * torch.sigmoid(gate)
        return o.reshape(B, -1) @ P("o_proj").t()

    @torch.no_grad()
    def step(self, tok):
        """tok [B] -> logits [B, V]; the residual stream stays in self.hidden (for the MTP layer)"""
        x = self.p["model.embed_tokens"][tok]
        for i in range(self.c.layers):
            pre = f"model.layers.{i}."
            u = self.rms(x, self.p[pre + "input_layernorm.weight"])
            x = x + (self.attn(i, u) if self.c.is_full(i) else self.gdn(i, u))
            u = self.rms(x, self.p[pre + "post_attention_layernorm.weight"])
            x = x + (F.silu(u @ self.p[pre + "mlp.gate_proj"].t()) * (u @ self.p[pre + "mlp.up_proj"].t())) @ self.p[pre + "mlp.down_proj"].t()
        self.t += 1
        self.hidden = x
        return self.rms(x, 1.0) @ self.p["lm_head"].t()


def pick(logits, gen, temp, top_k, top_p):
    if temp == 0:
        return int(logits.argmax())
    v, i = torch.topk(logits / temp, top_k)
    p = torch.softmax(v, -1)
    p = p * ((p.cumsum(0) - p) < top_p)
    return int(i[torch.multinomial(p / p.sum(), 1, generator=gen)])


def generate(m, tok, prompts, new, seeds=None, temp=0.0, top_k=20, top_p=0.9, penalty=1.0):
    """texts -> continuations. The penalty looks at generated tokens only."""
    ids = [tok.encode(p).ids for p in prompts]
    B = len(ids)
    gens = [torch.Generator().manual_seed(s) for s in (seeds or range(B))]
    stop = {tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")}
    d = Decoder(m, B, max(map(len, ids)) + new)
    out, done = [[] for _ in ids], [False] * B
    cur = torch.tensor([x[0] for x in ids])
    while not all(done):
        logits = d.step(cur)
        nxt = []
        for b in range(B):
            if d.t < len(ids[b]):
                nxt.append(ids[b][d.t])
                continue
            if done[b]:
                nxt.append(0)
                continue
            l = logits[b]
            if penalty != 1 and out[b]:
                u = torch.tensor(sorted(set(out[b])))
                x = l[u]
                l[u] = torch.where(x > 0, x / penalty, x * penalty)
            t = pick(l, gens[b], temp, top_k, top_p)
            if t in stop:
                done[b] = True
            else:
                out[b].append(t)
                done[b] = len(out[b]) >= new
            nxt.append(t)
        cur = torch.tensor(nxt)
    return [tok.decode(x, skip_special_tokens=False) for x in out]
