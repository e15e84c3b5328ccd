"""Reads the few GGUF features that the teacher file uses (Q4_1, Q8_0, Q6_K, F16, F32). Needs numpy only."""
import struct

import numpy as np

_SCALAR = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# type id -> (elements per block, bytes per block)
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 14: (256, 210)}


class Gguf:
    def __init__(self, path):
        self.buf = np.memmap(path, dtype=np.uint8, mode="r")
        self.pos = 0
        assert bytes(self.buf[:4]) == b"GGUF", "not a GGUF file"
        self.pos = 4
        _version, n_tensors, n_kv = self._s("<I"), self._s("<Q"), self._s("<Q")
        self.meta = {}
        for _ in range(n_kv):
            key = self._str()
            self.meta[key] = self._value(self._s("<I"))
        self.tensors = {}
        for _ in range(n_tensors):
            name = self._str()
            dims = [self._s("<Q") for _ in range(self._s("<I"))]
            typ, off = self._s("<I"), self._s("<Q")
            self.tensors[name] = (dims[::-1], typ, off)
        align = self.meta.get("general.alignment", 32)
        self.base = (self.pos + align - 1) // align * align

    def _s(self, fmt):
        n = struct.calcsize(fmt)
        (v,) = struct.unpack(fmt, self.buf[self.pos : self.pos + n].tobytes())
        self.pos += n
        return v

    def _str(self):
        n = self._s("<Q")
        s = self.buf[self.pos : self.pos + n].tobytes().decode("utf-8", "replace")
        self.pos += n
        return s

    def _value(self, t):
        if t == 8:
            return self._str()
        if t == 9:
            et, n = self._s("<I"), self._s("<Q")
            return [self._value(et) for _ in range(n)]
        return self._s(_SCALAR[t])

    def tensor(self, name):
        """-> float32 array in row-major [out, in] order"""
        shape, typ, off = self.tensors[name]
        n = int(np.prod(shape))
        per, size = BLOCK[typ]
        nb = n // per
        raw = np.asarray(self.buf[self.base + off : self.base + off + nb * size])
        if typ == 0:
            x = raw.view(np.float32)
        elif typ == 1:
            x = raw.view(np.float16).astype(np.float32)
        else:
            raw = raw.reshape(nb, size)
            f16 = lambda c: raw[:, c : c + 2].copy().view(np.float16).astype(np.float32)
            if typ == 2:
                q = raw[:, 2:]
                x = (np.concatenate([q & 15, q >> 4], 1).astype(np.float32) - 8) * f16(0)
            elif typ == 3:
                q = raw[:, 4:]
                x = np.concatenate([q & 15, q >> 4], 1).astype(np.float32) * f16(0) + f16(2)
            elif typ == 8:
                x = raw[:, 2:].view(np.int8).astype(np.float32) * f16(0)
            else:  # Q6_K
                ql, qh, sc = raw[:, :128], raw[:, 128:192], raw[:, 192:208].view(np.int8).astype(np.float32)
                out = np.empty((nb, 256), np.float32)
                for h in range(2):
                    l, hi = ql[:, 64 * h : 64 * h + 64], qh[:, 32 * h : 32 * h + 32]
                    parts = [
                        (l[:, :32] & 15) | ((hi & 3) << 4),
                        (l[:, 32:] & 15) | (((hi >> 2) & 3) << 4),
                        (l[:, :32] >> 4) | (((hi >> 4) & 3) << 4),
                        (l[:, 32:] >> 4) | (((hi >> 6) & 3) << 4),
                    ]
                    out[:, 128 * h : 128 * h + 128] = np.concatenate(parts, 1).astype(np.float32) - 32
                x = out * np.repeat(sc, 16, axis=1) * f16(208)
        return np.ascontiguousarray(x.reshape(shape), dtype=np.float32)
