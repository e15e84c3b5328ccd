"""SmolLM2-135M-Instruct in torch, for one thing: sampling at a high rate with a fixed batch of slots.

Each slot runs a small state machine on the device: forced prompt tokens, then sampled tokens up to <|im_end|>, then perhaps a
forced turn header and more sampled tokens, then the next prompt. One decode step is one CUDA graph replay."""
import math

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU machine
    triton = None

L, H, NH, NKV, HD, FF, V = 30, 576, 9, 3, 64, 1536, 49152
IM_START, IM_END, EOT = 1, 2, 0

if triton is not None:

    @triton.jit
    def _decode_attn(Q, K, Vv, POS, O, T: tl.constexpr, BLK: tl.constexpr, SCALE: tl.constexpr):
        """One program per (slot, kv head): 3 query heads (padded to 16) over keys 0..pos. K, V [B, NKV, T, 64]"""
        b = tl.program_id(0)
        h = tl.program_id(1)
        pos = tl.load(POS + b)
        rq = tl.arange(0, 16)
        rd = tl.arange(0, 64)
        rk = tl.arange(0, BLK)
        q = tl.load(Q + b * 576 + h * 192 + rq[:, None] * 64 + rd[None, :], mask=rq[:, None] < 3, other=0.0)
        base = (b * 3 + h).to(tl.int64) * T * 64
        m = tl.full([16], -1e30, tl.float32)
        l = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, 64], tl.float32)
        for s in range(0, pos + 1, BLK):
            ok = (s + rk) <= pos
            k = tl.load(K + base + (s + rk)[:, None] * 64 + rd[None, :], mask=ok[:, None], other=0.0)
            v = tl.load(Vv + base + (s + rk)[:, None] * 64 + rd[None, :], mask=ok[:, None], other=0.0)
            x = tl.dot(q, tl.trans(k)).to(tl.float32) * SCALE
            x = tl.where(ok[None, :], x, -1e30)
            m2 = tl.maximum(m, tl.max(x, 1))
            a = tl.exp(m - m2)
            p = tl.exp(x - m2[:, None])
            l = l * a + tl.sum(p, 1)
            acc = acc * a[:, None] + tl.dot(p.to(v.dtype), v).to(tl.float32)
            m = m2
        o = acc / l[:, None]
        tl.store(O + b * 576 + h * 192 + rq[:, None] * 64 + rd[None, :], o.to(O.dtype.element_ty), mask=rq[:, None] < 3)


def load(path, device, dtype):
    from gguf import Gguf

    g = Gguf(path)
    get = lambda n: torch.from_numpy(g.tensor(n)).to(device)

    def unpermute(w, heads):  # GGUF stores q/k rows for interleaved rope; back to half-split
        return w.view(heads, HD // 2, 2, -1).transpose(1, 2).reshape(w.shape)

    W = {"emb": get("token_embd.weight").to(dtype), "norm": get("output_norm.weight")}
    for i in range(L):
        p = f"blk.{i}."
        q, k, v = unpermute(get(p + "attn_q.weight"), NH), unpermute(get(p + "attn_k.weight"), NKV), get(p + "attn_v.weight")
        W[i] = (get(p + "attn_norm.weight"), torch.cat([q, k, v]).to(dtype), get(p + "attn_output.weight").to(dtype), get(p + "ffn_norm.weight"),
                torch.cat([get(p + "ffn_gate.weight"), get(p + "ffn_up.weight")]).to(dtype), get(p + "ffn_down.weight").to(dtype))
    return g, W


def rms(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * w).to(x.dtype)


def qkv_step(x, n, w, cos, sin):
    B = x.shape[0]
    y = (rms(x, n) @ w.t()).view(B, NH + 2 * NKV, HD)
    qk, v = y[:, : NH + NKV].float(), y[:, NH + NKV :]
    a, b = qk[..., :32], qk[..., 32:]
    c, s = cos[:, None], sin[:, None]
    qk = torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)
    return qk[:, :NH].contiguous(), qk[:, NH:], v


def post_step(x, o, wo, n, wgu, wd):
    x = x + o @ wo.t()
    gu = rms(x, n) @ wgu.t()
    return x + (F.silu(gu[:, :FF]) * gu[:, FF:]) @ wd.t()


def attn_torch(q, K, Vv, pos):
    B, T = q.shape[0], K.shape[2]
    mask = torch.arange(T, device=q.device)[None, :] <= pos[:, None]
    o = F.scaled_dot_product_attention(q.view(B, NKV, NH // NKV, HD), K, Vv, attn_mask=mask[:, None, None, :])
    return o.reshape(B, NH * HD)


def attn_triton(q, K, Vv, pos):
    o = torch.empty(q.shape[0], NH * HD, dtype=q.dtype, device=q.device)
    _decode_attn[(q.shape[0], NKV)](q, K, Vv, pos, o, T=K.shape[2], BLK=64, SCALE=HD**-0.5, num_warps=2)
    return o


def forward_full(W, ids):
    """[B, T] -> logits, plain causal forward (for checks and for scoring text)"""
    B, T = ids.shape
    x = F.embedding(ids, W["emb"])
    pos = torch.arange(T, device=ids.device)
    inv = 100000.0 ** (-torch.arange(0, HD, 2, device=ids.device).float() / HD)
    cos, sin = (pos[:, None] * inv).cos(), (pos[:, None] * inv).sin()
    for i in range(L):
        n1, wqkv, wo, n2, wgu, wd = W[i]
        q, k, v = qkv_step(x.reshape(B * T, H), n1, wqkv, cos.repeat(B, 1), sin.repeat(B, 1))
        sh = lambda t, n: t.reshape(B, T, n, HD).transpose(1, 2)
        o = F.scaled_dot_product_attention(sh(q, NH), sh(k, NKV).repeat_interleave(3, 1), sh(v, NKV).repeat_interleave(3, 1), is_causal=True)
        x = post_step(x.reshape(B * T, H), o.transpose(1, 2).reshape(B * T, H), wo, n2, wgu, wd).view(B, T, H)
    return rms(x, W["norm"]) @ W["emb"].t()


class Generator:
    """pool: dict of tensors: feed [P, Lp] teacher ids, rec [P, Lp] ids to record (macros >= V allowed), length [P], turns [P] (sampled
    segments), first [P] (0: the first sampled segment is an assistant turn, 1: it is a user turn), temp [P].
    Headers between turns: hdr_feed / hdr_rec [2, Lh], hdr_len [2]; index 0 leads into an assistant turn, 1 into a user turn."""

    def __init__(self, W, pool, hdr, device, dtype, batch, ctx, topk=16, cand=24, min_p=0.03, use_triton=True, compile=True, seed=0, newline=None, one=-1, stops=None):
        self.W, self.B, self.T, self.K, self.cand, self.min_p = W, batch, ctx, topk, cand, min_p
        self.dev, self.pool, self.hdr = device, pool, hdr
        z = lambda *s, d=torch.long: torch.zeros(*s, dtype=d, device=device)
        self.kc = [z(batch, NKV, ctx, HD, d=dtype) for _ in range(L)]
        self.vc = [z(batch, NKV, ctx, HD, d=dtype) for _ in range(L)]
        self.pos, self.doc = z(batch), torch.arange(batch, device=device)
        self.next = torch.full((), batch, dtype=torch.long, device=device)
        self.src = z(batch)  # 0: pool prompt, 1: header into assistant, 2: header into user, 3: sampling
        self.off, self.left = z(batch), pool["turns"][self.doc].clone()
        self.who = pool["first"][self.doc].clone()  # role of the segment being or about to be sampled
        self.tok = z(batch)
        self.arB = torch.arange(batch, device=device)
        inv = 100000.0 ** (-torch.arange(0, HD, 2, device=device).float() / HD)
        ang = torch.arange(ctx, device=device)[:, None] * inv
        self.cos, self.sin = ang.cos(), ang.sin()
        cuda = device != "cpu"
        self.attn = attn_triton if (cuda and use_triton and triton is not None) else attn_torch
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.qkv, self.post, self.choose = wrap(qkv_step), wrap(post_step), self._choose
        # what one step reports: recorded token (or -1), its top-k, flags
        self.o_rec, self.o_ids, self.o_p = z(batch), z(batch, topk), z(batch, topk, d=torch.float)
        self.o_sampled, self.o_start, self.o_doc, self.o_who = z(batch, d=torch.bool), z(batch, d=torch.bool), z(batch), z(batch)
        self.logits = torch.zeros(batch, V, dtype=dtype, device=device)
        self.seen = z(batch, 4096, d=torch.bool)  # hashed 4-grams of the running document
        self.hist = z(batch, 3)  # its last three tokens
        # an answer that has passed its limit ends at the next line break, unless it is a list: the teacher rambles
        self.newline = torch.zeros(V, dtype=torch.bool, device=device) if newline is None else newline.to(device)
        self.one, self.is_list = one, z(batch, d=torch.bool)
        # 40 tokens past its limit it ends after a sentence; masks: ends a sentence, no sentence end before a stop (abbreviations), closes a quotation
        self.stops = torch.zeros(3, V, dtype=torch.bool, device=device) if stops is None else stops.to(device)
        torch.manual_seed(seed)
        self.graph = None

    @staticmethod
    def _hash(hist, tok):
        """hist [B, 3], tok [B, n] -> [B, n] slots of the 4-gram"""
        h = hist[:, 0] * 7919 + hist[:, 1] * 104729 + hist[:, 2] * 1299709
        return (h[:, None] + tok * 15485863) % 4093

    def _choose(self, logits, temp):
        v, i = torch.topk(logits.float(), self.cand, dim=-1, sorted=True)
        p = torch.softmax(v / temp[:, None], -1)
        p = torch.where(p >= self.min_p * p[:, :1], p, torch.zeros_like(p))
        again = self.seen.gather(1, self._hash(self.hist, i))
        p = torch.where(again, p * 0.002 + 1e-9, p)  # a 4-gram that the document already has
        p = p / p.sum(-1, keepdim=True)
        p, order = p.sort(-1, descending=True)
        i = i.gather(1, order)
        e = torch.empty_like(p).exponential_()
        j = (p / e).argmax(-1, keepdim=True)
        q = p[:, : self.K]
        return i.gather(1, j)[:, 0], i[:, : self.K], q / q.sum(-1, keepdim=True)

    def step(self):
        """choose the token for position pos (forced or sampled from the last logits), record it, feed it"""
        P, hdr = self.pool, self.hdr
        temp = torch.where(self.who == 1, P["temp_user"][self.doc], P["temp"][self.doc])
        s_tok, ids, p = self.choose(self.logits, temp)
        forced = self.src < 3
        self.is_list.copy_(torch.where(~forced & (self.off == 0), s_tok == self.one, self.is_list))
        lim = P["limit"][self.doc]
        sentence = (self.off >= lim + 40) & self.stops[0][self.hist[:, 2]] & ~self.stops[1][self.hist[:, 1]] & ~self.stops[2][s_tok]
        end = ~forced & (self.who == 0) & ~self.is_list & (((self.off >= lim) & self.newline[s_tok]) | sentence)
        s_tok = torch.where(end, torch.full_like(s_tok, IM_END), s_tok)
        ids = torch.where(end[:, None], torch.full_like(ids, IM_END), ids)
        p = torch.where(end[:, None], torch.nn.functional.one_hot(torch.zeros_like(s_tok), self.K).to(p.dtype), p)
        Lp, Lh = P["feed"].shape[1], hdr["feed"].shape[1]
        offp, offh = self.off.clamp(max=Lp - 1), self.off.clamp(max=Lh - 1)
        h = (self.src - 1).clamp(0, 1)
        inpool = self.src == 0
        f_feed = torch.where(inpool, P["feed"][self.doc, offp], hdr["feed"][h, offh])
        f_rec = torch.where(inpool, P["rec"][self.doc, offp], hdr["rec"][h, offh])
        flen = torch.where(inpool, P["length"][self.doc], hdr["len"][h])
        tok = torch.where(forced, f_feed, s_tok)
        self.o_rec.copy_(torch.where(forced, f_rec, s_tok))
        self.o_ids.copy_(ids)
        self.o_p.copy_(p)
        self.o_sampled.copy_(~forced)
        self.o_start.copy_(self.pos == 0)
        self.o_doc.copy_(self.doc)
        self.o_who.copy_(self.who)
        fresh = (self.pos == 0)[:, None]
        self.seen.masked_fill_(fresh, False)
        self.seen.scatter_(1, self._hash(self.hist, tok[:, None]), (~forced & (self.off >= 3))[:, None] | self.seen.gather(1, self._hash(self.hist, tok[:, None])))
        self.hist.copy_(torch.cat([self.hist[:, 1:], tok[:, None]], 1))
        # feed
        x = F.embedding(tok, self.W["emb"])
        pos = self.pos
        cos, sin = self.cos[pos], self.sin[pos]
        for i in range(L):
            n1, wqkv, wo, n2, wgu, wd = self.W[i]
            q, k, v = self.qkv(x, n1, wqkv, cos, sin)
            self.kc[i][self.arB, :, pos] = k
            self.vc[i][self.arB, :, pos] = v
            x = self.post(x, self.attn(q, self.kc[i], self.vc[i], pos), wo, n2, wgu, wd)
        self.logits.copy_(rms(x, self.W["norm"]) @ self.W["emb"].t())
        # state
        end_forced = forced & (self.off + 1 >= flen)
        stop = ~forced & ((s_tok == IM_END) | (s_tok == EOT))
        left = self.left - stop.long()
        full = pos + 1 >= self.T - 1
        done = (stop & (left <= 0)) | (~forced & (s_tok == EOT)) | full
        more = stop & ~done
        who = torch.where(more, 1 - self.who, self.who)
        src = torch.where(end_forced, torch.full_like(self.src, 3), self.src)
        src = torch.where(more, 1 + who, src)
        off = torch.where(end_forced | more, torch.zeros_like(self.off), self.off + 1)
        new_doc = self.next + done.long().cumsum(0) - 1
        n_pool = P["turns"].shape[0]
        doc = torch.where(done, new_doc % n_pool, self.doc)
        self.next.add_(done.sum())
        self.src.copy_(torch.where(done, torch.zeros_like(src), src))
        self.off.copy_(torch.where(done, torch.zeros_like(off), off))
        self.pos.copy_(torch.where(done, torch.zeros_like(pos), pos + 1))
        self.left.copy_(torch.where(done, P["turns"][doc], left))
        self.who.copy_(torch.where(done, P["first"][doc], who))
        self.doc.copy_(doc)

    def capture(self):
        """CUDA graph of one step"""
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s), torch.no_grad():
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(s)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), torch.no_grad():
            self.step()
        self.reset()

    def reset(self):
        n = self.B
        self.pos.zero_(); self.off.zero_(); self.src.zero_(); self.logits.zero_(); self.seen.zero_(); self.hist.zero_()
        self.doc.copy_(torch.arange(n, device=self.dev))
        self.next.fill_(n)
        self.left.copy_(self.pool["turns"][self.doc]); self.who.copy_(self.pool["first"][self.doc])

    def run(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            with torch.no_grad():
                self.step()
