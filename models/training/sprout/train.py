"""Trains sprout within a given time: the VAE, then text encoder and 1-bit transformer together, then a ternary transformer that
continues from the 1-bit latents behind the same encoder. Writes packs, scores and a sheet of samples.

    python train.py --out DIR --seconds 300            one GPU
    python train.py --out DIR --seconds 60 --toy       a CPU, to see that it runs
"""
import argparse
import json
import math
import os
import tarfile
import time

import torch
import torch.nn.functional as F

import check
import export
import nets as N
import png
import quant
import scenes as S

TOKENS = 64  # latent pixels of a picture


def sigmas(steps, tokens=TOKENS):
    """The engine's noise levels (empirical shift)."""
    few, many = 8.73809524e-5 * tokens + 1.89833333, 0.00016927 * tokens + 0.45666666
    slope = (many - few) / 190
    e = math.exp(slope * steps + many - 200 * slope)
    base = [1 - i * (1 - 1 / steps) / (steps - 1) for i in range(steps)]
    return [e / (e + 1 / b - 1) for b in base] + [0.0]


def graph_of(step):
    """A CUDA graph of a whole step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


# --- data ----------------------------------------------------------------------------------------------------------------------
@torch.no_grad()
def make_pool(device, n, batch, log):
    """Pictures, open numbers, ids and lengths of n scenes of the training side."""
    g, begun = torch.Generator(device).manual_seed(21), time.time()
    pool = dict(picture=torch.empty(n, 3, S.SIDE, S.SIDE, device=device, dtype=torch.uint8), open=torch.empty(n, S.OPEN, device=device),
                ids=torch.empty(n, S.TEXT, device=device, dtype=torch.long), many=torch.empty(n, device=device, dtype=torch.long))
    for at in range(0, n, batch):
        m = min(batch, n - at)
        scene = S.sample_split(m, g)
        open_ = torch.rand(m, S.OPEN, device=device, generator=g)
        pool["picture"][at : at + m] = ((S.draw(scene, open_) + 1) * 127.5).round().to(torch.uint8)
        pool["open"][at : at + m] = open_
        _, _, pool["ids"][at : at + m], pool["many"][at : at + m] = S.captions(scene, g)
    log(f"{n} scenes drawn in {time.time() - begun:.1f} s")
    return pool


@torch.no_grad()
def encode_pool(vae, pool, device, batch, log):
    """Latents in place of pictures."""
    begun, pictures = time.time(), pool.pop("picture")
    pool["x"] = torch.empty(len(pictures), TOKENS, 128, device=device, dtype=torch.float16)
    for at in range(0, len(pictures), batch):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            pool["x"][at : at + batch] = vae.latents(pictures[at : at + batch] / 127.5 - 1).half()
    log(f"encoded in {time.time() - begun:.1f} s; latents std {pool['x'][:4096].float().std():.3f}")


# --- VAE -----------------------------------------------------------------------------------------------------------------------
def train_vae(pool, device, seconds, batch, log):
    vae, cuda = N.Vae().to(device), device == "cuda"
    lr = torch.tensor(0.0, device=device)
    opt = torch.optim.AdamW(vae.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0, **(dict(fused=True, capturable=True) if cuda else {}))
    kept = torch.zeros((), device=device)
    for p in vae.parameters():
        p.grad = torch.zeros_like(p)

    def one():
        picture = pool["picture"][torch.randint(len(pool["picture"]), (batch,), device=device)] / 127.5 - 1
        # Inside a graph nothing may be kept from one step to the next, the copies of weights neither.
        with torch.autocast(device, torch.bfloat16, enabled=cuda, cache_enabled=False):
            z = vae.latents(picture)
            # The decoder learns to bear what the transformer leaves.
            z = z + 0.15 * torch.randn_like(z)
            got = vae.pictures(z).float()
        loss = (got - picture).abs().mean() + 2 * (got - picture).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=False)
        kept.copy_(loss.detach())

    begun = time.time()
    run = graph_of(one).replay if cuda else one
    log(f"vae: graph in {time.time() - begun:.1f} s")
    start, step = time.time(), 0
    seconds = max(seconds - (start - begun), 1.0)
    while (part := (time.time() - start) / seconds) < 1:
        lr.fill_(1.5e-3 * min(1, (step + 1) / 100) * max(0.01, 0.5 * (1 + math.cos(math.pi * part))))
        run()
        step += 1
        if step % 20 == 0:
            loss = kept.item()
            if step % 400 == 0:
                log(f"vae {part:.2f} step {step} loss {loss:.4f} ({(time.time() - start) / step * 1e3:.1f} ms a step)")
    vae.eval()
    g = torch.Generator(device).manual_seed(11)
    with torch.no_grad():
        for p in vae.parameters():
            p.copy_(quant.bf16(p))
        for b in (vae.bn.running_mean, vae.bn.running_var):
            b.copy_(quant.bf16(b))
        scene = S.sample_split(4 * batch, g, held=True)
        picture = S.draw(scene, torch.rand(4 * batch, S.OPEN, device=device, generator=g))
        z = vae.latents(picture)
        got = vae.pictures(z)
        noisy = vae.pictures(z + 0.15 * torch.randn_like(z))
        right = score(scene, (got / 2 + 0.5).clamp(0, 1))
        log(f"vae {step} steps: psnr {psnr(got, picture):.2f} dB, with noise {psnr(noisy, picture):.2f} dB, latents std "
            f"{z.std():.3f}; checker on its own pictures {right['all']:.3f}")
    return vae


def psnr(a, b):
    return float(-10 * torch.log10(((a.clamp(-1, 1) - b) / 2).pow(2).mean()))


# --- weights -------------------------------------------------------------------------------------------------------------------
class Latents:
    """All weights in one flat buffer for each way of storing, so that rounding is a handful of kernels."""

    def __init__(self, weights, bits_of):
        self.layout, flats = {}, {}
        for name, w in weights.items():
            bits = bits_of(name)
            key = 16 if w.dim() == 1 else bits
            self.layout.setdefault(key, []).append((name, tuple(w.shape)))
            flats.setdefault(key, []).append(w.detach().float().flatten())
        self.flat = {k: torch.cat(v).requires_grad_() for k, v in flats.items()}

    def views(self, flats):
        out = {}
        for key, entries in self.layout.items():
            pieces = flats[key].split([math.prod(shape) for _, shape in entries])
            out |= {name: piece.view(shape) for (name, shape), piece in zip(entries, pieces)}
        return out

    def rounded(self, dtype):
        group = {1: 128, 2: 128, 4: 64, 16: 128}
        flats = {}
        for key, flat in self.flat.items():
            # Rows are whole numbers of groups, so a group is the same in the flat buffer as in its matrix.
            x = flat if key == 16 else flat.view(-1, group[key])
            flats[key] = quant.rounded(x, key).flatten().to(dtype)
        return self.views(flats)


def join(*parts):
    return {name: w for part in parts for name, w in part.items()}


# --- training of encoder and transformer ----------------------------------------------------------------------------------------
class Trainer:
    def __init__(self, pool, latents, frozen, device, batch, dtype, blocks, lrs):
        """`latents`: a Latents each with a learning rate; `frozen`: weights that are not trained."""
        self.pool, self.latents, self.frozen, self.device, self.batch, self.dtype = pool, latents, frozen, device, batch, dtype
        self.layer, self.blocks = blocks
        self.turn = tuple(t.to(dtype) for t in N.angles(S.TEXT, 8, 8, device))
        self.levels = torch.tensor(sigmas(4), device=device)
        groups = [dict(params=list(l.flat.values()), lr=torch.tensor(0.0, device=device)) for l in latents]
        self.lrs = lrs
        cuda = device == "cuda"
        self.opt = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0, **(dict(fused=True, capturable=True) if cuda else {}))
        self.flats = [f for l in latents for f in l.flat.values()]
        self.ema = [f.detach().clone() for f in self.flats]
        self.loss = torch.zeros((), device=device)
        self.graphs = {}

    def forward(self, w, x, sigma, prompt):
        return N.flow(w, x, sigma, prompt, self.turn, self.blocks)

    def step(self, rolled):
        """One step; `rolled`: from states that the sampler itself reaches, else from true mixtures of noise and latents."""
        b, dev, pool = self.batch, self.device, self.pool
        w = join(self.frozen, *(l.rounded(self.dtype) for l in self.latents))
        at = torch.randint(len(pool["x"]), (b,), device=dev)
        x0 = pool["x"][at].float()
        noise = S.tie(torch.randn(b, TOKENS, 128, device=dev), pool["open"][at])
        with torch.set_grad_enabled(w["model.embed_tokens.weight"].requires_grad):
            prompt = N.encode(w, pool["ids"][at], pool["many"][at], self.dtype, self.layer)
        if rolled:
            with torch.no_grad():
                x, kept, which = noise, noise, torch.randint(1, 4, (b,), device=dev)
                for i in range(3):
                    v = self.forward(w, x, self.levels[i].expand(b), prompt)
                    x = x + (self.levels[i + 1] - self.levels[i]) * v.float()
                    kept = torch.where((which == i + 1)[:, None, None], x, kept)
                x, sigma = kept, self.levels[which]
            target = (x - x0) / sigma[:, None, None]
        else:
            p = torch.rand(b, device=dev)
            # The sampler's four levels most of the time, the last of them twice as often; all others for other numbers of steps.
            which = (p * 7).long().clamp(max=4)
            sigma = torch.where(which < 4, self.levels[which.clamp(max=3)], torch.where(p > 0.94, self.levels[3], 0.02 + 0.98 * torch.rand(b, device=dev)))
            s = sigma[:, None, None]
            x, target = s * noise + (1 - s) * x0, noise - x0
        got = self.forward(w, x, sigma, prompt)
        loss = (got.float() - target).pow(2).mean()
        loss.backward()
        norm = torch.stack([f.grad.pow(2).sum() for f in self.flats]).sum().sqrt()
        for f in self.flats:
            f.grad.mul_((1 / norm).clamp(max=1))
        self.opt.step()
        for f in self.flats:
            f.grad.zero_()
        torch._foreach_lerp_(self.ema, [f.detach() for f in self.flats], 0.003)
        self.loss.copy_(loss.detach())

    def run(self, seconds, log, word):
        for f in self.flats:
            f.grad = torch.zeros_like(f)
        begun = time.time()
        cuda = self.device == "cuda"
        if cuda:
            for rolled in (False, True):
                self.graphs[rolled] = graph_of(lambda: self.step(rolled))
            log(f"{word}: graphs in {time.time() - begun:.1f} s, memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        start, step, told = time.time(), 0, 0
        seconds = max(seconds - (start - begun), 1.0)
        sums = {False: [0.0, 0], True: [0.0, 0]}
        while (part := (time.time() - start) / seconds) < 1:
            rate = min(1, (step + 1) / 100) * max(0.01, 0.5 * (1 + math.cos(math.pi * part)))
            for group, lr in zip(self.opt.param_groups, self.lrs):
                group["lr"].fill_(lr * rate)
            rolled = step % 2 == 1 and part > 0.25
            self.graphs[rolled].replay() if cuda else self.step(rolled)
            step += 1
            if step % 20 in (10, 11) or not cuda:
                sums[rolled][0] += self.loss.item()
                sums[rolled][1] += 1
            if part * 20 >= told + 1 or not cuda:
                told = int(part * 20)
                mean = {k: v[0] / max(1, v[1]) for k, v in sums.items()}
                log(f"{word} {part:.2f} step {step} loss {mean[False]:.4f} rolled {mean[True]:.4f} ({(time.time() - start) / step * 1e3:.1f} ms a step)")
                sums = {False: [0.0, 0], True: [0.0, 0]}
        log(f"{word}: {step} steps of {self.batch}, {(time.time() - start) / step * 1e3:.2f} ms each")

    def final(self):
        """Averaged latents, a dictionary for each Latents."""
        out, at = [], 0
        for l in self.latents:
            n = len(l.flat)
            out.append({k: v.clone() for k, v in l.views(dict(zip(l.flat, self.ema[at : at + n]))).items()})
            at += n
        return out


# --- judging -------------------------------------------------------------------------------------------------------------------
def score(scene, pictures):
    right, by_kind, what = 0, {}, {}
    for i, (ground, found) in enumerate(check.objects(pictures)):
        wrong = check.faults(scene, i, ground, found)
        right += not wrong
        kind = S.KINDS[int(scene["kind"][i])]
        a, b = by_kind.get(kind, (0, 0))
        by_kind[kind] = (a + (not wrong), b + 1)
        for w in wrong:
            what[w] = what.get(w, 0) + 1
    return dict(all=right / len(pictures), kinds={k: round(a / b, 3) for k, (a, b) in sorted(by_kind.items())}, faults=what)


@torch.no_grad()
def sample(w, vae, ids, many, noise, steps=4):
    """Latents and pictures (0..1), in f32."""
    levels, turn = sigmas(steps), N.angles(S.TEXT, 8, 8, noise.device)
    prompt, x = N.encode(w, ids, many, torch.float32), noise
    for a, b in zip(levels, levels[1:]):
        x = x + (b - a) * N.flow(w, x, torch.full((len(x),), a, device=x.device), prompt, turn)
    return x, (vae.float().pictures(x) / 2 + 0.5).clamp(0, 1)


@torch.no_grad()
def judge(w, vae, device, n, steps=4, seed=31):
    """Held-out scenes, their prompts, pictures and score."""
    g = torch.Generator(device).manual_seed(seed)
    scene = S.sample_split(n, g, held=True)
    said, capital, ids, many = S.captions(scene, g)
    noise = torch.randn(n, TOKENS, 128, device=device, generator=g)
    parts = [sample(w, vae, ids[i : i + 128], many[i : i + 128], noise[i : i + 128], steps)[1] for i in range(0, n, 128)]
    pictures = torch.cat(parts)
    return scene, S.render_text(said, capital), pictures, score(scene, pictures)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=300)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--pool", type=int, default=300_000)
    p.add_argument("--judged", type=int, default=512)
    p.add_argument("--eager", action="store_true")
    p.add_argument("--toy", action="store_true")
    a = p.parse_args()
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if a.toy:
        a.batch, a.pool, a.judged = 4, 32, 4
    os.makedirs(a.out, exist_ok=True)

    def log(text):
        print(f"[{time.time() - begun:6.1f}] {text}", flush=True)

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    pool = make_pool(device, a.pool, 2048 if device == "cuda" else 16, log)
    vae = train_vae(pool, device, 0.21 * a.seconds, 64 if device == "cuda" else 4, log)
    encode_pool(vae, pool, device, 2048 if device == "cuda" else 16, log)
    compile_ = (lambda f: f) if a.eager or device == "cpu" else (lambda f: torch.compile(f, dynamic=False))
    blocks = (compile_(N.encoder_layer), (compile_(N.double_block), compile_(N.single_block)))

    g = torch.Generator().manual_seed(41)
    encoder = Latents(N.init(N.encoder_shapes(), device, g), lambda _: 4)
    one = Latents(N.init(N.transformer_shapes(), device, g), lambda name: N.transformer_bits(name, 1))
    count = {k: v.numel() for l in (encoder, one) for k, v in l.flat.items()}
    log(f"weights by bits: {count}")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left = a.seconds - (time.time() - begun) - (0.07 * a.seconds + 8)
    trainer = Trainer(pool, [encoder, one], {}, device, a.batch, dtype, blocks, [1e-3, 2e-3])
    trainer.run(0.74 * left, log, "1-bit")
    text, image = trainer.final()
    fixed = lambda weights, bits_of: export.restored(export.tensors({k: v.cpu() for k, v in weights.items()}, bits_of), bits_of)
    on = lambda weights: {k: v.to(device) for k, v in weights.items()}
    text_fixed = on(fixed(text, lambda _: 4))
    results = {}

    def finish(weights, bits, name):
        w = join(text_fixed, on(fixed(weights, lambda n: N.transformer_bits(n, bits))))
        scene, prompts, pictures, result = judge(w, vae, device, a.judged)
        log(f"{name}: {json.dumps(result)}")
        results[name] = result
        png.write(f"{a.out}/{name}.png", png.sheet(pictures[:40], 8))
        with open(f"{a.out}/{name}.json", "w") as f:
            cases = [dict(prompt=t, **{k: v[i].tolist() for k, v in scene.items()}) for i, t in enumerate(prompts[:120])]
            json.dump(dict(result=result, cases=cases), f)
        return w

    name = "sprout"
    export.shared(f"{a.out}/{name}", name, 1, text, vae)
    export.transformer(f"{a.out}/{name}", image, 1)
    w = finish(image, 1, name)
    for steps in (2, 8):
        log(f"{name} in {steps} steps: {json.dumps(judge(w, vae, device, a.judged // 2, steps)[3])}")

    def pack():
        with tarfile.open(f"{a.out}/packs.part", "w:xz", preset=1) as tar:
            for folder in (name, f"{name}-ternary"):
                if os.path.isdir(f"{a.out}/{folder}"):
                    tar.add(f"{a.out}/{folder}", folder)
        os.replace(f"{a.out}/packs.part", f"{a.out}/packs.tar.xz")

    pack()
    two = Latents(image, lambda n: N.transformer_bits(n, 2))
    trainer = Trainer(pool, [two], {k: v.to(dtype) for k, v in text_fixed.items()}, device, a.batch, dtype, blocks, [1e-3])
    trainer.run(max(3.0, a.seconds - (time.time() - begun) - (0.03 * a.seconds + 5)), log, "ternary")
    (image,) = trainer.final()
    export.transformer(f"{a.out}/{name}-ternary", image, 2)
    finish(image, 2, f"{name}-ternary")
    pack()
    log("done")


if __name__ == "__main__":
    main()
