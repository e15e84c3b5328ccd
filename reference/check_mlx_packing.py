"""Checks the packing convention of common.py against the real mlx (CPU)."""

import numpy as np, torch, mlx.core as mx, sys

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from common import pack_codes, unpack_codes

print("mlx", mx.__version__, mx.default_device())
rng = np.random.default_rng(0)
for bits in (1, 2, 4, 8):
    for gs in (32, 64, 128):
        w = rng.standard_normal((5, 512)).astype(np.float32)
        q, s, b = mx.quantize(mx.array(w), group_size=gs, bits=bits)
        qn, sn, bn = np.array(q), np.array(s), np.array(b)
        codes = unpack_codes(qn, bits)
        assert np.array_equal(pack_codes(codes, bits), qn)
        ref = np.repeat(sn, gs, -1) * codes + np.repeat(bn, gs, -1)
        dq = np.array(mx.dequantize(q, s, b, group_size=gs, bits=bits))
        x = rng.standard_normal((3, 512)).astype(np.float32)
        mm = np.array(mx.quantized_matmul(mx.array(x), q, s, b, transpose=True, group_size=gs, bits=bits))
        extra = ""
        if bits == 1:
            extra = f" bias==-scale/2: {np.allclose(bn, -sn / 2)}; scale/mean|w|: {np.mean(sn / (2 * np.abs(w.reshape(5, -1, gs)).mean(-1))):.3f}"
        print(
            bits,
            gs,
            "dequant max diff",
            np.abs(ref - dq).max(),
            "matmul rel",
            np.abs(mm - x @ ref.T).max() / np.abs(mm).max(),
            "scale sign",
            np.unique(np.sign(sn)).tolist(),
            extra,
        )
# f16 dequantization rounds in f16 (scale*q+bias) -- exact for symmetric 1-bit / ternary
s = mx.array(rng.uniform(0.01, 0.1, (4, 4)).astype(np.float16))
codes = rng.integers(0, 2, (4, 512)).astype(np.uint32)
d = mx.dequantize(mx.array(pack_codes(codes, 1)), s * 2, -s, group_size=128, bits=1)
print(
    "f16 1-bit symmetric exact:",
    np.array_equal(np.array(d), np.where(codes == 1, 1, -1).astype(np.float16) * np.repeat(np.array(s), 128, -1)),
)
