"""Trains the decoder of finished packs further, on the very latents that their transformers make.

The noise of a picture says everything that its caption leaves open, so the picture that should come of it is known, and the
decoder can learn to draw it from latents that are not quite right. It is shared by both transformers and sees both.

    python refine.py --packs DIR --out DIR --seconds 120       DIR holds sprout/ and sprout-ternary/
"""
import argparse
import json
import math
import os
import time

import torch

import export
import nets as N
import png
import quant
import scenes as S
import train as T


def weights(packs, name, bits, device):
    image = export.load(f"{packs}/{name}/transformer-packed-mflux/diffusion_pytorch_model.safetensors")
    text = export.load(f"{packs}/sprout/text_encoder-mlx-4bit/model.safetensors")
    w = T.join(export.restored(text, lambda _: 4), export.restored(image, lambda _: bits))
    return {k: v.to(device) for k, v in w.items()}


@torch.no_grad()
def pairs(models, device, dtype, seconds, most, batch, log):
    """Latents as sampled, and the pictures that they should be."""
    g, begun = torch.Generator(device).manual_seed(61), time.time()
    levels, turn = T.sigmas(4), tuple(t.to(dtype) for t in N.angles(S.TEXT, 8, 8, device))
    models = [{k: v.to(dtype) for k, v in w.items()} for w in models]
    x0 = torch.empty(most, T.TOKENS, 128, device=device, dtype=torch.float16)
    picture = torch.empty(most, 3, S.SIDE, S.SIDE, device=device, dtype=torch.uint8)
    n = 0
    while n + batch <= most and (n == 0 or time.time() - begun < seconds):
        w = models[n // batch % len(models)]
        scene = S.sample_split(batch, g)
        _, _, ids, many = S.captions(scene, g)
        x = torch.randn(batch, T.TOKENS, 128, device=device, generator=g)
        picture[n : n + batch] = ((S.draw(scene, S.open_of(x)) + 1) * 127.5).round().to(torch.uint8)
        prompt = N.encode(w, ids, many, dtype)
        for a, b in zip(levels, levels[1:]):
            x = x + (b - a) * N.flow(w, x, torch.full((batch,), a, device=device), prompt, turn).float()
        x0[n : n + batch] = x.half()
        n += batch
        if n // batch % 8 == 0 and device == "cuda":
            torch.cuda.synchronize()
    log(f"{n} pairs in {time.time() - begun:.1f} s")
    return x0[:n], picture[:n]


def fit(vae, x0, picture, device, seconds, batch, log):
    cuda = device == "cuda"
    parts = [*vae.post_quant_conv.parameters(), *vae.decoder.parameters()]
    lr, kept = torch.tensor(0.0, device=device), torch.zeros((), device=device)
    opt = torch.optim.AdamW(parts, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, **(dict(fused=True, capturable=True) if cuda else {}))
    for p in parts:
        p.grad = torch.zeros_like(p)

    def one():
        at = torch.randint(len(x0), (batch,), device=device)
        wanted = picture[at] / 127.5 - 1
        with torch.autocast(device, torch.bfloat16, enabled=cuda, cache_enabled=False):
            got = vae.pictures(x0[at].float()).float()
        loss = (got - wanted).abs().mean() + 2 * (got - wanted).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=False)
        kept.copy_(loss.detach())

    begun = time.time()
    run = T.graph_of(one).replay if cuda else one
    start, step, sum_, many = time.time(), 0, 0.0, 0
    seconds = max(seconds - (start - begun), 1.0)
    while (part := (time.time() - start) / seconds) < 1:
        lr.fill_(1e-3 * min(1, (step + 1) / 100) * max(0.01, 0.5 * (1 + math.cos(math.pi * part))))
        run()
        step += 1
        if step % 10 == 0 or not cuda:
            sum_, many = sum_ + kept.item(), many + 1
            if step % 400 == 0 or not cuda:
                log(f"decoder {part:.2f} step {step} loss {sum_ / many:.4f} ({(time.time() - start) / step * 1e3:.1f} ms a step)")
                sum_, many = 0.0, 0
    with torch.no_grad():
        for p in parts:
            p.copy_(quant.bf16(p))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--packs", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--judged", type=int, default=512)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--most", type=int, default=300_000)
    a = p.parse_args()
    begun = time.time()
    log = lambda text: print(f"[{time.time() - begun:6.1f}] {text}", flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    vae = N.Vae().to(device).eval()
    vae.load_state_dict({k: v.float() for k, v in export.load(f"{a.packs}/sprout/vae/diffusion_pytorch_model.safetensors").items()}, strict=False)
    models = {"sprout": weights(a.packs, "sprout", 1, device), "sprout-ternary": weights(a.packs, "sprout-ternary", 2, device)}

    def judge(word):
        for name, w in models.items():
            _, _, pictures, result = T.judge(w, vae, device, a.judged)
            log(f"{word}: {name}: {json.dumps(result)}")
            png.write(f"{a.out}/{name}.png", png.sheet(pictures[:40], 8))

    judge("before")
    x0, picture = pairs(list(models.values()), device, torch.bfloat16 if device == "cuda" else torch.float32, 0.3 * a.seconds, a.most, a.batch, log)
    # Judging takes about as long after as before.
    fit(vae, x0, picture, device, a.seconds - 1.3 * (time.time() - begun - 0.3 * a.seconds) - 0.3 * a.seconds, 64 if device == "cuda" else 2, log)
    export.decoder(a.out, vae)
    judge("after")


if __name__ == "__main__":
    main()
