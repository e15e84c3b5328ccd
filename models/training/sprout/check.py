"""Whether a picture shows what its caption says: colours, shapes, counts and places, from connected areas of one colour.

The engine's test does the same (crates/cli/tests/commands/shapes.rs); a change here is a change there.
"""
import torch
import torch.nn.functional as F

import scenes as S

GRID = 32
# What a shape of radius 1 spans: left, right, top, bottom.
EXTENT = [(-1, 1, -1, 1), (-0.86, 0.86, -0.86, 0.86), (-1, 1, -1, 0.8), (-1, 1, -1, 1), (-0.95, 0.95, -0.95, 0.95),
          (-0.951, 0.951, -1, 0.809), (-0.966, 0.966, -0.966, 0.8)]
# An area counts when so many of its pixels have nothing else within two pixels; the soft edge of another shape has none.
SOLID = 9


def filled(mask):
    """Every row from its first to its last pixel: what stands inside a shape leaves no hole in it."""
    m = mask.long()
    return (m.cummax(-1).values & m.flip(-1).cummax(-1).values.flip(-1)).bool()


def templates():
    at = (torch.arange(GRID) + 0.5) / GRID
    out = []
    for shape, (x0, x1, y0, y1) in enumerate(EXTENT):
        y, x = torch.meshgrid(y0 + (y1 - y0) * at, x0 + (x1 - x0) * at, indexing="ij")
        out.append(filled(S.distance(shape, x, y) < 0))
    return torch.stack(out)


TEMPLATES = templates()


def areas(pictures):
    """pictures [n, 3, h, w] in 0..1 -> colour classes, ground class, labels (0 on the ground), counts of solid pixels by label."""
    n, _, h, w = pictures.shape
    dev = pictures.device
    palette = torch.tensor(S.PALETTE + [S.PAPER], device=dev).float() / 255
    far = ((pictures[:, None] - palette[None, :, :, None, None]) ** 2).sum(2)
    colour = far.argmin(1)
    border = torch.cat([colour[:, 0], colour[:, -1], colour[:, :, 0], colour[:, :, -1]], 1)
    ground = F.one_hot(border, 11).sum(1).argmax(1)
    label = torch.arange(1, h * w + 1, device=dev).view(1, h, w) * (colour != ground[:, None, None])
    while True:
        before = label
        for _ in range(16):
            for axis in (1, 2):
                for shift in (1, -1):
                    moved = torch.roll(label, shift, axis)
                    same = (torch.roll(colour, shift, axis) == colour) & (label > 0)
                    edge = 0 if shift == 1 else (h if axis == 1 else w) - 1
                    same.select(axis, edge).fill_(False)
                    label = torch.where(same, torch.maximum(label, moved), label)
        if torch.equal(label, before):
            break
    padded = F.pad(label, (2, 2, 2, 2), value=-1)
    around = padded.unfold(1, 5, 1).unfold(2, 5, 1).flatten(3)
    solid = (around == label[..., None]).all(3) & (label > 0)
    return colour, ground, label, solid


def shape_of(mask):
    """-> index of the best shape, its overlap, and the box (left, right, top, bottom; the ends not in it)."""
    mask = filled(mask)
    ys, xs = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    top, bottom, left, right = int(ys[0]), int(ys[-1]) + 1, int(xs[0]), int(xs[-1]) + 1
    pick = lambda a, b: a + (2 * torch.arange(GRID) + 1) * (b - a) // (2 * GRID)
    small = mask[pick(top, bottom)][:, pick(left, right)]
    overlap = (TEMPLATES & small).sum((1, 2)) / (TEMPLATES | small).sum((1, 2))
    return int(overlap.argmax()), float(overlap.max()), (left, right, top, bottom)


def objects(pictures):
    """-> for each picture its ground class and a list of (colour, shape, box)."""
    colour, ground, label, solid = (t.cpu() for t in areas(pictures))
    out = []
    for i in range(len(pictures)):
        found = []
        ids, many = label[i][solid[i]].unique(return_counts=True)
        for area in ids[many >= SOLID].tolist():
            mask = label[i] == area
            shape, _, box = shape_of(mask)
            found.append((int(colour[i][mask][0]), shape, box))
        out.append((int(ground[i]), found))
    return out


def middle(boxes):
    n = len(boxes)
    return sum(b[0] + b[1] for b in boxes) / (2 * n), sum(b[2] + b[3] for b in boxes) / (2 * n)


def faults(s, i, ground, found):
    """What is wrong with a picture of scene i: nothing, or words."""
    wrong = []
    if ground != (10 if s["ground"][i] < 0 else int(s["ground"][i])):
        wrong.append("ground")
    groups = [(int(s["colour"][i, k]), int(s["shape"][i, k]), int(s["count"][i, k])) for k in range(3) if s["count"][i, k] > 0]
    wanted = sorted((c, f) for c, f, n in groups for _ in range(n))
    got = sorted((c, f) for c, f, _ in found)
    if wanted != got:
        if len(wanted) != len(got):
            wrong.append("count")
        elif sorted(c for c, _ in wanted) != sorted(c for c, _ in got):
            wrong.append("colour")
        else:
            wrong.append("shape")
        return wrong
    boxes = [[b for c, f, b in found if (c, f) == group[:2]] for group in groups]
    kind, relation, place = int(s["kind"][i]), int(s["relation"][i]), int(s["place"][i])
    if kind == S.PAIR and relation < 4 and groups[0][:2] != groups[1][:2]:
        (ax, ay), (bx, by) = middle(boxes[0]), middle(boxes[1])
        if [by - ay, ay - by, bx - ax, ax - bx][relation] < 6:
            wrong.append("relation")
    if kind == S.INSIDE:
        a, b = boxes[0][0], boxes[1][0]
        if not (a[0] > b[0] and a[1] < b[1] and a[2] > b[2] and a[3] < b[3]):
            wrong.append("relation")
    if place >= 0:
        x, y = middle(boxes[0])
        if (int((x >= 45) + (x >= 83)), int((y >= 45) + (y >= 83))) != (place % 3, place // 3):
            wrong.append("place")
    return wrong
