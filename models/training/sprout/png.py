"""A PNG file of an array of bytes, with nothing but the standard library."""
import struct
import zlib


def write(path, rgb):
    """rgb: uint8 tensor [height, width, 3]."""
    h, w, _ = rgb.shape
    raw = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in rgb)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def sheet(pictures, columns):
    """Pictures [n, 3, h, w] in 0..1 as one array of bytes."""
    import torch

    n, _, h, w = pictures.shape
    rows = -(-n // columns)
    out = torch.full((rows * (h + 4) - 4, columns * (w + 4) - 4, 3), 255, dtype=torch.uint8)
    for i, p in enumerate((pictures * 255).round().to(torch.uint8).cpu()):
        y, x = i // columns * (h + 4), i % columns * (w + 4)
        out[y : y + h, x : x + w] = p.permute(1, 2, 0)
    return out
