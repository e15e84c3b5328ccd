"""Straight-through 1-bit and ternary weights. Every matrix row is a whole number of 128-groups, so all latent matrices
live in one flat f32 buffer that is viewed as [-1, 128]."""
import torch

import model as M

GROUP = 128


def binary(latent):
    """group scale = mean |w|, value = +-scale (>= 0 counts as +)"""
    x = latent.view(-1, GROUP)
    s = x.abs().mean(1, keepdim=True).to(torch.bfloat16).to(x.dtype)
    return torch.where(x >= 0, s, -s).view(-1)


def ternary(latent):
    """threshold at half of mean |w|, scale = mean |w| of the kept weights"""
    x = latent.view(-1, GROUP)
    a = x.abs()
    keep = a > 0.5 * a.mean(1, keepdim=True)
    s = ((a * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True).clamp(min=1)).to(torch.bfloat16).to(x.dtype)
    return (torch.sign(x) * s * keep).view(-1)


def dense(latent):
    return latent


MODES = {"binary": binary, "ternary": ternary, "dense": dense}


def init_latents(m, gen, copy_to_model=False):
    """-> flat f32 latents and, per element group, nothing else; sigma per matrix from model.init_sigma"""
    flat = torch.empty(m.w.numel(), dtype=torch.float32)
    for name, shape in m.mats.items():
        o, n = m.span[name]
        flat[o : o + n].normal_(0, M.init_sigma(name, shape), generator=gen)
    if copy_to_model:
        m.w.copy_(flat)
    return flat
