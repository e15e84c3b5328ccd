"""Straight-through training of 1-bit (or ternary, or dense) weights on any number of GPUs of one host.

    python -m torch.distributed.run --nproc-per-node N train.py --data DIR --out DIR --minutes 17
or without the launcher for one process. The latents (f32) are the trained thing; each step quantises them into the network's
bf16 buffer, runs an ordinary forward and backward, averages the flat gradients over the ranks and updates the latents."""
import argparse
import glob
import json
import os
import time

import torch
import torch.distributed as dist

import model as M
import quant
from data import Data


def newton_schulz(G, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.bfloat16()
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.mT if tr else X


class Optimizer:
    """AdamW on everything, or Muon on the hidden matrices and AdamW on the rest. Per-matrix learning rate multipliers keep the
    step relative to the initial size of the latents the same everywhere."""

    def __init__(self, m, latent, kind, wd, b2=0.95, eps=1e-10):
        self.m, self.w, self.kind, self.wd, self.b2, self.eps = m, latent, kind, wd, b2, eps
        self.m1, self.m2 = torch.zeros_like(latent), torch.zeros_like(latent)
        self.s1, self.s2 = torch.zeros_like(m.small), torch.zeros_like(m.small)
        mult = torch.ones(latent.numel() // quant.GROUP, device=latent.device)
        for n, shape in m.mats.items():
            o, k = m.span[n]
            mult[o // quant.GROUP : (o + k) // quant.GROUP] = M.init_sigma(n, shape) / 0.0442
        self.mult = mult
        self.t = 0
        self.scalars = [torch.zeros((), device=latent.device) for _ in range(256)]
        self.groups = {}
        if kind == "muon":
            for n, shape in m.mats.items():
                if n not in ("model.embed_tokens", "lm_head") and min(shape) >= 128:
                    self.groups.setdefault(shape, []).append(n)
        comp = latent.device.type == "cuda"
        self._adam = torch.compile(self.adam_math) if comp else self.adam_math
        self._muon = torch.compile(self.muon_math, dynamic=False) if comp else self.muon_math

    @staticmethod
    def adam_math(w, g, m1, m2, lr, mult, wd, c1, c2, b1: float, b2: float, eps: float):
        g = g.float()
        m1 = m1 + (g - m1) * (1 - b1)
        m2 = m2 + (g * g - m2) * (1 - b2)
        u = (m1 * c1) / ((m2 * c2).sqrt() + eps)
        step = lr * mult
        return w - step * u - w * (step * wd), m1, m2

    @staticmethod
    def muon_math(g, m1, beta):
        g = g.float()
        m1 = m1 + (g - m1) * (1 - beta)
        u = g + (m1 - g) * beta
        O = newton_schulz(u).float()
        return O * (0.2 * max(g.shape[-2], g.shape[-1]) ** 0.5), m1

    def step(self, lr, lr_small):
        self.t += 1
        b1 = 0.9
        self.slot = 0

        def f(x):  # a device scalar without a host copy (that would wait for the stream)
            self.slot += 1
            return self.scalars[self.slot - 1].fill_(x)

        c1, c2 = f(1 / (1 - b1**self.t)), f(1 / (1 - self.b2**self.t))
        G = quant.GROUP
        v = lambda x: x.view(-1, G)

        def adam(w, g, m1, m2, lr, mult, wd):
            a, b, c = self._adam(w, g, m1, m2, f(lr), mult, f(wd), c1, c2, b1, self.b2, self.eps)
            w.copy_(a); m1.copy_(b); m2.copy_(c)

        if self.kind == "adam":
            adam(v(self.w), v(self.m.w_grad), v(self.m1), v(self.m2), lr, self.mult[:, None], self.wd)
        else:
            rest = [n for n in self.m.mats if not any(n in g for g in self.groups.values())]
            for n in rest:
                o, k = self.m.span[n]
                sl = slice(o, o + k)
                adam(v(self.w[sl]), v(self.m.w_grad[sl]), v(self.m1[sl]), v(self.m2[sl]), lr, self.mult[o // G : (o + k) // G, None], self.wd)
            for shape, names in self.groups.items():
                sl = [slice(self.m.span[n][0], sum(self.m.span[n])) for n in names]
                g = torch.stack([self.m.w_grad[s].view(shape) for s in sl])
                m1 = torch.stack([self.m1[s].view(shape) for s in sl])
                u, m1 = self._muon(g, m1, f(0.95))
                for i, (n, s) in enumerate(zip(names, sl)):
                    self.m1[s].copy_(m1[i].reshape(-1))
                    st = lr * (M.init_sigma(n, shape) / 0.0442)
                    self.w[s].mul_(1 - st * self.wd).sub_(u[i].reshape(-1), alpha=st)
        adam(self.m.small, self.m.small_grad, self.s1, self.s2, lr_small, f(1.0), 0.0)  # no decay on norms, convolutions and gates


def save_latents(path, m, latent, meta):
    """sign and 7-bit magnitude per weight, group maximum in f16; small parameters in f32; 4 parts + a json"""
    x = latent.view(-1, quant.GROUP)
    top = x.abs().amax(1, keepdim=True).clamp(min=1e-8)
    q = (x.abs() / top * 127).round().clamp(1, 127)
    q = torch.where(x >= 0, q, -q).to(torch.int8).view(-1).cpu()
    s = x.abs().mean(1).to(torch.bfloat16).cpu()  # the binary scale, exactly
    n = q.numel()
    parts = 4
    for i in range(parts):
        a, b = n * i // parts // 128 * 128, n * (i + 1) // parts // 128 * 128 if i + 1 < parts else n
        torch.save(dict(start=a, q=q[a:b].clone(), top=top.view(-1)[a // 128 : b // 128].half().cpu().clone(), scale=s[a // 128 : b // 128].clone(), small=m.small.cpu() if i == 0 else None), f"{path}.{i}.pt")
    json.dump(meta, open(f"{path}.json", "w"))


def load_latents(path, m):
    latent = torch.empty(m.w.numel())
    for i in range(4):
        d = torch.load(f"{path}.{i}.pt")
        k = len(d["q"])
        x = d["q"].view(-1, 128).float() / 127 * d["top"].float()[:, None]
        if "scale" in d:  # make the mean magnitude round to the recorded scale again
            x = x * (d["scale"].float() / x.abs().mean(1).clamp(min=1e-12))[:, None]
        latent[d["start"] : d["start"] + k] = x.view(-1)
        if d["small"] is not None:
            m.small.copy_(d["small"])
    return latent


def main():
    ap = argparse.ArgumentParser()
    A = ap.add_argument
    A("--data", required=True); A("--out", required=True)
    A("--minutes", type=float, default=0); A("--steps", type=int, default=0)
    A("--rows", type=int, default=32); A("--T", type=int, default=2048)
    A("--mode", default="binary", choices=list(quant.MODES)); A("--opt", default="adam", choices=["adam", "muon"])
    A("--lr", type=float, default=2e-3); A("--lr-small", type=float, default=2e-3); A("--wd", type=float, default=0.1)
    A("--warmup", type=float, default=0.02); A("--alpha", type=float, default=0.1); A("--mtp-rows", type=int, default=8); A("--mtp-weight", type=float, default=0.3)
    A("--seed", type=int, default=1); A("--resume", default=""); A("--resume-pack", default=""); A("--config", default="{}"); A("--tag", default="run")
    A("--eval-every", type=int, default=500); A("--save-every", type=float, default=240); A("--no-compile", action="store_true"); A("--solo", action="store_true")
    A("--proc-fraction", type=float, default=1.0); A("--final-lr", type=float, default=0.01); A("--time-offset", type=float, default=0); A("--profile", action="store_true")
    A("--tok", default="", help="folder of tokenizer.json: the held-out documents are then written as text")
    a = ap.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cuda = torch.cuda.is_available()
    dev = torch.device(f"cuda:{rank}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(dev)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    say = lambda *x: print(*x, flush=True) if rank == 0 else None
    t_start = time.time()
    os.makedirs(a.out, exist_ok=True)
    c = M.Config(**json.loads(a.config))
    dt = torch.bfloat16 if cuda else torch.float32
    m = M.Model(c, dev, dt, compile=cuda and not a.no_compile)
    gen = torch.Generator().manual_seed(a.seed)
    latent = quant.init_latents(m, gen)
    m.init_small(gen)
    if a.resume:
        latent = load_latents(a.resume, m)
    if a.resume_pack:  # only signs and scales are known: every latent starts at its group's scale
        import export

        old = export.read_pack(a.resume_pack)
        with torch.no_grad():
            latent = old.w.clone()
            m.small.copy_(old.small)
    latent = latent.to(dev)
    qfun = quant.MODES[a.mode]
    qf = torch.compile(qfun) if cuda else qfun
    requant = lambda: m.w.copy_(qf(latent))
    with torch.no_grad():
        requant()
    opt = Optimizer(m, latent, a.opt, a.wd)
    files = sorted(glob.glob(a.data + "/teacher*.pt"))
    mine = [f for i, f in enumerate(files) if i % world == rank] or files[:1]
    proc = a.data + "/proc.pt"
    D = Data(mine, a.T, dev, (rank, world), proc if os.path.exists(proc) else None, a.proc_fraction, held=a.rows * (a.T + 2) * 1.3 if a.eval_every else 0, seed=a.seed * 100 + rank, alpha=a.alpha)
    held = D.held_rows(a.rows)  # one batch of the training shape, so that nothing is compiled anew
    say(f"{m.w.numel() / 1e6:.2f} M matrix weights, {m.small.numel()} small; {len(D.train_docs)} docs on rank 0, {D.tok.numel() / 1e6:.1f} M tokens, soft rows {len(D.sid) / 1e6:.1f} M, held rows {len(held)}; ready {time.time() - t_start:.0f} s")
    if world > 1:
        ok = torch.tensor([float(len(held) == a.rows)], device=dev)
        dist.all_reduce(ok, op=dist.ReduceOp.MIN)
        held = held if ok.item() else held[:0]
    if a.tok and rank == 0 and len(D.held_docs):
        from tokenizers import Tokenizer

        tk = Tokenizer.from_file(a.tok + "/tokenizer.json")
        with open(f"{a.out}/heldout.txt", "w", encoding="utf-8") as f:
            for i in D.held_docs:
                s = tk.decode(D.tok[D.begin[i] : D.begin[i] + D.len[i]].tolist(), skip_special_tokens=False)
                f.write(s if s.endswith("<|endoftext|>") else s + "<|endoftext|>")
                f.write("\n")
    it = D.epochs(a.rows)
    log = open(f"{a.out}/{a.tag}.log.jsonl", "a") if rank == 0 else None

    def loss_of(ids, nxt, tids, tp, w, mtp_rows):
        B, T = ids.shape
        x = m.trunk(ids)
        h = m.final(x).reshape(B * T, -1)
        n = w[:, :T].sum().clamp(min=1)
        l = m.head(h, m.p["lm_head"], tids, tp, w[:, :T].reshape(-1)) / n
        lm = None
        if mtp_rows:
            r = min(mtp_rows, B)
            y = m.mtp(x[:r].detach(), nxt[:r, :T]).reshape(r * T, -1)
            t2 = nxt[:r, 1 : T + 1].reshape(-1, 1)
            w2 = w[:r, 1 : T + 1].reshape(-1)
            lm = m.head(y, m.p["lm_head"].detach(), t2, torch.ones_like(t2, dtype=torch.float32), w2) / w2.sum().clamp(min=1)
        return l, lm

    def evaluate():
        ids, nxt, tids, tp, w = D.batch(held, alpha=1.0)
        l, _ = loss_of(ids, nxt, tids, tp, w, 0)
        n = w[:, : a.T].sum()
        tot = torch.stack([l.detach() * n, n])
        if world > 1:
            dist.all_reduce(tot)
        return (tot[0] / tot[1].clamp(min=1)).item()

    t0, step, tokens, last_save, t_log = time.time(), 0, 0, time.time(), None
    budget = a.minutes * 60
    acc, acc_n = torch.zeros(2, device=dev), 0
    prog = torch.zeros(1, device=dev)
    progress = 0.0
    while True:
        if a.steps:
            progress = step / a.steps
        elif step % 10 == 0:
            prog.fill_((time.time() - t0 + a.time_offset) / budget)
            if world > 1:
                dist.broadcast(prog, 0)
            progress = prog.item()
        if progress >= 1:
            break
        lr = a.lr * min(1, (progress + 1e-3) / a.warmup if a.warmup else 1) * max(a.final_lr, 1 - max(0, progress - a.warmup) / (1 - a.warmup))
        if a.profile and step == 60:
            prof = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA])
            prof.__enter__()
        if a.profile and step == 63:
            torch.cuda.synchronize()
            prof.__exit__(None, None, None)
            say(prof.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=60)[:9000])
        ids, nxt, tids, tp, w = next(it)
        m.zero_grad()
        l, lm = loss_of(ids, nxt, tids, tp, w, a.mtp_rows)
        (l + a.mtp_weight * lm if lm is not None else l).backward()
        with torch.no_grad():
            acc += torch.stack([l.detach(), lm.detach() if lm is not None else l.detach() * 0])
            acc_n += 1
            if world > 1:
                dist.all_reduce(m.w_grad, op=dist.ReduceOp.AVG) if cuda else dist.all_reduce(m.w_grad)
                dist.all_reduce(m.small_grad, op=dist.ReduceOp.AVG) if cuda else dist.all_reduce(m.small_grad)
            opt.step(lr, a.lr_small * lr / a.lr)
            requant()
        step += 1
        tokens += a.rows * a.T * world
        if step in (1, 5) or step % 50 == 0:
            x = (acc / acc_n).tolist()
            acc.zero_(); acc_n = 0
            now = time.time()
            rate = 50 * a.rows * a.T * world / (now - t_log) if t_log and step % 50 == 0 and step > 50 else 0
            t_log = now
            if not (x[0] == x[0]):
                say("NaN loss, stopping"); break
            say(f"{a.tag} step {step} loss {x[0]:.4f} mtp {x[1]:.4f} lr {lr:.2e} {rate:.0f} tok/s {tokens / 1e6:.1f} M {now - t0:.0f} s")
            if rank == 0:
                log.write(json.dumps(dict(step=step, loss=round(x[0], 4), mtp=round(x[1], 4), lr=lr, rate=round(rate), tokens=tokens, sec=round(now - t0, 1))) + "\n"); log.flush()
        if a.eval_every and step % a.eval_every == 0 and len(held) == a.rows:
            e = evaluate()
            say(f"{a.tag} step {step} held-out {e:.4f}")
            if rank == 0:
                log.write(json.dumps(dict(step=step, held=round(e, 4), tokens=tokens, sec=round(time.time() - t0, 1))) + "\n"); log.flush()
        if time.time() - last_save > a.save_every and rank == 0 and a.save_every > 0:
            last_save = time.time()
            save(a, c, m, latent, step, tokens, progress)
    e = evaluate() if len(held) == a.rows else 0
    say(f"{a.tag} done: step {step}, {tokens / 1e6:.1f} M tokens, held-out {e:.4f}, {time.time() - t0:.0f} s training, peak {torch.cuda.max_memory_allocated() / 2**30 if cuda else 0:.1f} GiB")
    if rank == 0:
        log.write(json.dumps(dict(done=True, step=step, held=round(e, 4), tokens=tokens, sec=round(time.time() - t0, 1))) + "\n"); log.flush()
        save(a, c, m, latent, step, tokens, 1.0)
        open(f"{a.out}/{a.tag}.done", "w").write("done\n")
    if world > 1:
        dist.destroy_process_group()


def save(a, c, m, latent, step, tokens, progress):
    import export

    meta = dict(config=c.dict(), mode=a.mode, step=step, tokens=tokens, progress=progress, args=vars(a))
    save_latents(f"{a.out}/{a.tag}.ckpt", m, latent, meta)
    export.write_pack(f"{a.out}/{a.tag}.pack", m, latent, a.mode)


if __name__ == "__main__":
    main()
