"""Reads and writes GGUF v3 files byte for byte: keys stay as they lie in the file, tensors can be replaced."""

import struct

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q1_0": 41, "Q2_0": 42}
# type id -> (weights a block, bytes a block)
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 41: (128, 18), 42: (64, 18)}
ALIGN = 32


class Tensor:
    def __init__(self, name, dims, kind, data):
        self.name, self.dims, self.kind, self.data = name, dims, kind, data

    def type_name(self):
        return next(n for n, k in TYPES.items() if k == self.kind)

    def replace(self, type_name, data):
        self.kind = TYPES[type_name]
        assert len(data) == nbytes(self.dims, self.kind), (self.name, len(data))
        self.data = data


class File:
    def __init__(self, keys, tensors):
        self.keys, self.tensors = keys, tensors  # keys: [(name, raw bytes of type and value)]

    def drop_key(self, name):
        self.keys = [(k, raw) for k, raw in self.keys if k != name]

    def write(self, path):
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)))
        text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
        for name, raw in self.keys:
            out += text(name) + raw
        at = 0
        for t in self.tensors:
            out += text(t.name) + struct.pack("<I", len(t.dims)) + struct.pack(f"<{len(t.dims)}Q", *t.dims)
            out += struct.pack("<IQ", t.kind, at)
            at += len(t.data) + -len(t.data) % ALIGN
        out += bytes(-len(out) % ALIGN)
        for t in self.tensors:
            out += t.data + bytes(-len(t.data) % ALIGN)
        open(path, "wb").write(out)


def nbytes(dims, kind):
    n = 1
    for d in dims:
        n *= d
    weights, size = BLOCKS[kind]
    assert n % weights == 0
    return n // weights * size


def read(path):
    b = open(path, "rb").read()
    at = 0

    def take(fmt):
        nonlocal at
        v = struct.unpack_from("<" + fmt, b, at)[0]
        at += struct.calcsize("<" + fmt)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n : at].decode()

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            inner, n = take("I"), take("Q")
            for _ in range(n):
                skip(inner)
        else:
            at += SCALARS[kind]

    assert b[:4] == b"GGUF" and struct.unpack_from("<I", b, 4)[0] == 3
    at = 8
    n_tensors, n_keys = take("Q"), take("Q")
    keys = []
    for _ in range(n_keys):
        name = text()
        start = at
        skip(take("I"))
        keys.append((name, b[start:at]))
        assert name != "general.alignment", "only the default alignment is written"
    infos = []
    for _ in range(n_tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    base = at + -at % ALIGN
    return File(keys, [Tensor(n, d, k, b[base + o : base + o + nbytes(d, k)]) for n, d, k, o in infos])
