"""Weights as the pack stores them, with gradients passed straight through.

Binary and ternary: groups of 128 along a row with one scale each; the text encoder: 4-bit affine, groups of 64. Scales and
offsets are rounded to bf16, so training sees the very values of the pack. `codes` gives what is written.
"""
import torch


def bf16(x):
    return x.to(torch.bfloat16).to(x.dtype)


def codes(w, bits):
    """w [rows, columns] f32 -> codes [rows, columns], scales and offsets [rows, groups]: value = scale * code + offset."""
    rows = w.shape[0]
    if bits == 4:
        x = w.view(rows, -1, 64)
        low, high = x.amin(2, keepdim=True), x.amax(2, keepdim=True)
        offset, scale = bf16(low), bf16(((high - low) / 15).clamp(min=1e-6))
        code = ((x - offset) / scale).round().clamp(0, 15)
    else:
        x = w.view(rows, -1, 128)
        size = bf16(x.abs().mean(2, keepdim=True).clamp(min=1e-6))
        if bits == 1:
            code, scale = (x >= 0).to(w.dtype), 2 * size
        else:
            code, scale = (x / size).round().clamp(-1, 1) + 1, size
        offset = -size
    return code.view(rows, -1), scale[..., 0], offset[..., 0]


def values(code, scale, offset):
    rows, groups = scale.shape
    return (code.view(rows, groups, -1) * scale[..., None] + offset[..., None]).view(rows, -1)


def rounded(w, bits):
    """Straight through: the value of the pack, the gradient of the latent."""
    with torch.no_grad():
        target = bf16(w) if bits == 16 else values(*codes(w, bits))
    return w + (target - w).detach()
