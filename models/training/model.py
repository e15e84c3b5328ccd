"""The seedling architecture in plain torch: Qwen3.5 hybrid (gated delta rule + every fourth layer gated attention)
with one MTP layer. Parameter names are the pack's names without the `language_model.` prefix.

The matrices live in one flat buffer as *already quantised* bf16 values; the latent weights and the straight-through
step are the trainer's business (see quant.py / train.py), so the forward pass here is an ordinary network."""
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 12288
    hidden: int = 512
    layers: int = 12
    inter: int = 1536
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    lk_heads: int = 4
    lv_heads: int = 4
    lk_dim: int = 128
    lv_dim: int = 128
    conv: int = 4
    interval: int = 4
    theta: float = 10000.0
    partial: float = 0.25
    eps: float = 1e-6
    chunk: int = 128

    @property
    def rot(self):
        return int(self.head_dim * self.partial)

    def is_full(self, i):
        return (i + 1) % self.interval == 0

    dict = asdict


def full_shapes(c, p):
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return {
        f"{p}self_attn.q_proj": (2 * q, c.hidden),
        f"{p}self_attn.k_proj": (kv, c.hidden),
        f"{p}self_attn.v_proj": (kv, c.hidden),
        f"{p}self_attn.o_proj": (c.hidden, q),
    }


def shapes(c):
    """-> (matrices {path: (out, in)}, small {name: shape})"""
    m, s = {"model.embed_tokens": (c.vocab, c.hidden)}, {}
    key, val = c.lk_heads * c.lk_dim, c.lv_heads * c.lv_dim

    def block(p, full):
        s[p + "input_layernorm.weight"] = (c.hidden,)
        if full:
            m.update(full_shapes(c, p))
            s[p + "self_attn.q_norm.weight"] = (c.head_dim,)
            s[p + "self_attn.k_norm.weight"] = (c.head_dim,)
        else:
            m[p + "linear_attn.in_proj_qkv"] = (2 * key + val, c.hidden)
            m[p + "linear_attn.in_proj_z"] = (val, c.hidden)
            m[p + "linear_attn.in_proj_a"] = (c.lv_heads, c.hidden)
            m[p + "linear_attn.in_proj_b"] = (c.lv_heads, c.hidden)
            m[p + "linear_attn.out_proj"] = (c.hidden, val)
            s[p + "linear_attn.conv1d.weight"] = (2 * key + val, c.conv)
            s[p + "linear_attn.A_log"] = (c.lv_heads,)
            s[p + "linear_attn.dt_bias"] = (c.lv_heads,)
            s[p + "linear_attn.norm.weight"] = (c.lv_dim,)
        s[p + "post_attention_layernorm.weight"] = (c.hidden,)
        m[p + "mlp.gate_proj"] = (c.inter, c.hidden)
        m[p + "mlp.up_proj"] = (c.inter, c.hidden)
        m[p + "mlp.down_proj"] = (c.hidden, c.inter)

    for i in range(c.layers):
        block(f"model.layers.{i}.", c.is_full(i))
    m["lm_head"] = (c.vocab, c.hidden)
    m["mtp.fc"] = (c.hidden, 2 * c.hidden)
    s["mtp.pre_fc_norm_embedding.weight"] = (c.hidden,)
    s["mtp.pre_fc_norm_hidden.weight"] = (c.hidden,)
    block("mtp.layers.0.", True)
    s["mtp.norm.weight"] = (c.hidden,)
    return m, s


def init_sigma(name, shape):
    if name == "model.embed_tokens":
        return 0.35
    s = 1 / math.sqrt(shape[1])
    if name.endswith(("o_proj", "out_proj", "down_proj")):
        s *= 0.5
    return s


def rms(x, w, eps):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * w).to(x.dtype)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower A [..., C, C] in f32: 16-blocks by nilpotent doubling, then block merges."""

    @staticmethod
    def forward(ctx, A):
        C = A.shape[-1]
        b = min(16, C)
        lead = A.shape[:-2]
        eye = torch.eye(b, dtype=A.dtype, device=A.device)
        blk = A.reshape(*lead, C // b, b, C // b, b).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        n = -blk
        X = eye + n
        step = 2
        while step < b:
            n = n @ n
            X = X + X @ n
            step *= 2
        while b < C:
            k = C // (2 * b)
            pair = A.reshape(*lead, k, 2 * b, k, 2 * b).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            Xp = X.reshape(*lead, k, 2, b, b)
            x1, x2 = Xp[..., 0, :, :], Xp[..., 1, :, :]
            off = -(x2 @ (pair[..., b:, :b] @ x1))
            top = torch.cat([x1, torch.zeros_like(x1)], -1)
            X = torch.cat([top, torch.cat([off, x2], -1)], -2)
            b *= 2
        X = X.reshape(*lead, C, C)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    def backward(ctx, dX):
        (X,) = ctx.saved_tensors
        Xt = X.transpose(-1, -2)
        return -(Xt @ (dX @ Xt)).tril(-1)


def delta_rule(q, k, v, g, beta, C):
    """Chunked gated delta rule. q, k, v [B, T, H, D] (q scaled, both normalised), g, beta [B, T, H] f32 -> [B, T, H, Dv]"""
    B, T, H, D = q.shape
    N = T // C
    mm = q.dtype
    fold = lambda x: x.transpose(1, 2).reshape(B * H, N, C, x.shape[-1])
    q, k, v = fold(q), fold(k), fold(v)
    b = beta.transpose(1, 2).reshape(B * H, N, C, 1)
    c = g.transpose(1, 2).reshape(B * H, N, C).cumsum(-1)
    mask = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(~mask, float("-inf")).exp()
    kf = k.float() if mm == torch.bfloat16 else k
    A = ((kf * b) @ kf.transpose(-1, -2) * decay).tril(-1)
    Tm = UnitLowerInverse.apply(A).to(mm)
    ec = c.exp()[..., None]
    U = Tm @ (v * b).to(mm)
    W = Tm @ (k * (b * ec)).to(mm)
    P = ((q @ k.transpose(-1, -2)) * decay).to(mm)
    qe = (q * ec).to(mm)
    last = c[..., -1:]
    kd = (k * (last - c).exp()[..., None]).to(mm)
    el = last.exp()[..., None]
    S = torch.zeros(B * H, D, v.shape[-1], dtype=torch.float32 if mm == torch.bfloat16 else mm, device=q.device)
    vn, os = [], []
    for n in range(N):
        Sb = S.to(mm)
        x = U[:, n] - W[:, n] @ Sb
        os.append(qe[:, n] @ Sb)
        vn.append(x)
        S = S * el[:, n] + kd[:, n].transpose(-1, -2) @ x
    o = torch.stack(os, 1) + P @ torch.stack(vn, 1)
    return o.reshape(B, H, T, -1).transpose(1, 2)


def l2(x):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gdn(u, wqkv, wz, wa, wb, conv, A_log, dt, norm, wo, c):
    B, T, _ = u.shape
    x = u @ wqkv.t()
    z = (u @ wz.t()).view(B, T, c.lv_heads, c.lv_dim)
    a = (u @ wa.t()).float()
    b = (u @ wb.t()).float()
    xp = F.pad(x, (0, 0, c.conv - 1, 0)).float()
    y = sum(xp[:, j : j + T] * conv[:, j] for j in range(c.conv))
    y = F.silu(y).to(u.dtype)
    K = c.lk_heads * c.lk_dim
    q = y[..., :K].view(B, T, c.lk_heads, c.lk_dim)
    k = y[..., K : 2 * K].view(B, T, c.lk_heads, c.lk_dim)
    v = y[..., 2 * K :].view(B, T, c.lv_heads, c.lv_dim)
    q, k = l2(q) * c.lk_dim**-0.5, l2(k)
    r = c.lv_heads // c.lk_heads
    if r > 1:
        q, k = q.repeat_interleave(r, 2), k.repeat_interleave(r, 2)
    g = -A_log.exp() * F.softplus(a + dt)
    o = delta_rule(q, k, v, g, b.sigmoid(), min(c.chunk, T))
    o = rms(o, norm, c.eps)
    o = (o.float() * F.silu(z.float())).to(u.dtype).reshape(B, T, -1)
    return o @ wo.t()


def rope(x, cos, sin):
    r = cos.shape[-1] * 2
    a, b = x[..., : r // 2], x[..., r // 2 : r]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., r:]], -1)


def attention(u, wq, wk, wv, qn, kn, wo, cos, sin, c):
    B, T, _ = u.shape
    qg = (u @ wq.t()).view(B, T, c.heads, 2 * c.head_dim)
    q, gate = qg[..., : c.head_dim], qg[..., c.head_dim :]
    k = (u @ wk.t()).view(B, T, c.kv_heads, c.head_dim)
    v = (u @ wv.t()).view(B, T, c.kv_heads, c.head_dim)
    q, k = rope(rms(q, qn, c.eps), cos, sin), rope(rms(k, kn, c.eps), cos, sin)
    r = c.heads // c.kv_heads
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    o = o * torch.sigmoid(gate.float()).to(o.dtype)
    return o.reshape(B, T, -1) @ wo.t()


def mlp(u, wg, wu, wd):
    return (F.silu(u @ wg.t()) * (u @ wu.t())) @ wd.t()


def linear_block(x, p, c):
    n1, wqkv, wz, wa, wb, conv, A_log, dt, norm, wo, n2, wg, wu, wd = p
    x = x + gdn(rms(x, n1, c.eps), wqkv, wz, wa, wb, conv, A_log, dt, norm, wo, c)
    return x + mlp(rms(x, n2, c.eps), wg, wu, wd)


def full_block(x, p, cos, sin, c):
    n1, wq, wk, wv, qn, kn, wo, n2, wg, wu, wd = p
    x = x + attention(rms(x, n1, c.eps), wq, wk, wv, qn, kn, wo, cos, sin, c)
    return x + mlp(rms(x, n2, c.eps), wg, wu, wd)


def head_loss(h, w, ids, probs, weight):
    """Cross entropy against a sparse target distribution. h [N, H] (normalised), ids, probs [N, K], weight [N] -> sums"""
    logits = (h @ w.t()).float()
    lse = logits.logsumexp(-1)
    picked = (logits.gather(1, ids) * probs).sum(1)
    return ((lse - picked) * weight).sum()


LINEAR = ["input_layernorm.weight", "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.in_proj_b",
          "linear_attn.conv1d.weight", "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight", "linear_attn.out_proj",
          "post_attention_layernorm.weight", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
FULL = ["input_layernorm.weight", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
        "self_attn.o_proj", "post_attention_layernorm.weight", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


class Model:
    """Holds flat buffers: `w` (matrices, compute dtype), `small` (f32); both leaf tensors' grads are views of flat buffers too."""

    def __init__(self, c, device, dtype, compile=False):
        self.c, self.device, self.dtype = c, device, dtype
        self.mats, self.smalls = shapes(c)
        nm = sum(a * b for a, b in self.mats.values())
        ns = sum(math.prod(s) for s in self.smalls.values())
        self.w = torch.zeros(nm, dtype=dtype, device=device)
        self.w_grad = torch.zeros(nm, dtype=dtype, device=device)
        self.small = torch.zeros(ns, dtype=torch.float32 if dtype == torch.bfloat16 else dtype, device=device)
        self.small_grad = torch.zeros_like(self.small)
        self.p, self.span = {}, {}
        for flat, grad, table in ((self.w, self.w_grad, self.mats), (self.small, self.small_grad, self.smalls)):
            o = 0
            for name, shape in table.items():
                n = math.prod(shape)
                t = flat[o : o + n].view(shape).detach().requires_grad_(True)
                t.grad = grad[o : o + n].view(shape)
                self.p[name] = t
                self.span[name] = (o, n)
                o += n
        self.cache = {}
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.linear_block, self.full_block, self.head = wrap(linear_block), wrap(full_block), wrap(head_loss)
        self.mtp_in = wrap(self._mtp_in)

    def zero_grad(self):
        self.w_grad.zero_()
        self.small_grad.zero_()

    def rope_tables(self, T):
        if T not in self.cache:
            r = self.c.rot
            inv = self.c.theta ** (-torch.arange(0, r, 2, dtype=torch.float64) / r)
            ang = torch.arange(T, dtype=torch.float64)[:, None] * inv
            f = self.small.dtype
            self.cache[T] = (ang.cos().to(self.device, f), ang.sin().to(self.device, f))
        return self.cache[T]

    def params(self, prefix, names):
        return [self.p[prefix + n] for n in names]

    def trunk(self, ids):
        """-> residual stream before the final norm"""
        cos, sin = self.rope_tables(ids.shape[1])
        x = F.embedding(ids, self.p["model.embed_tokens"])
        for i in range(self.c.layers):
            pre = f"model.layers.{i}."
            if self.c.is_full(i):
                x = self.full_block(x, self.params(pre, FULL), cos, sin, self.c)
            else:
                x = self.linear_block(x, self.params(pre, LINEAR), self.c)
        return x

    def final(self, x):
        y = x.float() if x.dtype == torch.bfloat16 else x
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.c.eps)).to(x.dtype)  # final gain is fixed at 1 (MTP then sees the same h either way)

    @staticmethod
    def _mtp_in(e, h, ne, nh, w, eps):
        return torch.cat([rms(e, ne, eps), rms(h, nh, eps)], -1) @ w.t()

    def mtp(self, h, nxt):
        """h [B, T, H] trunk output at t (detached), nxt [B, T] the token at t+1 -> normalised state that predicts t+2"""
        cos, sin = self.rope_tables(h.shape[1])
        e = F.embedding(nxt, self.p["model.embed_tokens"].detach())
        x = self.mtp_in(e, h, self.p["mtp.pre_fc_norm_embedding.weight"], self.p["mtp.pre_fc_norm_hidden.weight"], self.p["mtp.fc"], self.c.eps)
        x = self.full_block(x, self.params("mtp.layers.0.", FULL), cos, sin, self.c)
        return rms(x, self.p["mtp.norm.weight"], self.c.eps)

    def logits(self, ids):
        return self.final(self.trunk(ids)) @ self.p["lm_head"].t()

    def init_small(self, gen):
        c = self.c
        with torch.no_grad():
            for name, t in self.p.items():
                if name not in self.smalls:
                    continue
                if name.endswith("A_log"):
                    t.copy_(torch.empty(t.shape).uniform_(0.5, 8, generator=gen).log())
                elif name.endswith("dt_bias"):
                    d = torch.empty(t.shape).uniform_(math.log(2e-3), math.log(0.1), generator=gen).exp()
                    t.copy_(d + torch.log(-torch.expm1(-d)))
                elif name.endswith("conv1d.weight"):
                    t.copy_(torch.empty(t.shape).uniform_(-0.5, 0.5, generator=gen))
                    t[:, -1] += 0.5
                else:
                    t.fill_(1.0)
