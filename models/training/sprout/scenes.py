"""Scenes of simple shapes, their captions as token ids, and their pictures: all drawn at once on the device that trains.

A scene has up to three groups of equal shapes. What its caption leaves open (exact places, radius, tints) is a function of
`open`, one uniform number each, which training ties to the noise that the picture starts from.
"""
import torch

import words as W

SIDE = 128
TEXT = 64  # tokens of a prompt with its frame, padding included
KINDS = ["single", "count", "pair", "row", "inside"]
SINGLE, COUNT, PAIR, ROW, INSIDE = range(5)
RELATIONS = ["above", "below", "left", "right", "beside"]
PLACES = ["top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right"]
OBJECTS = 6
# Place of each object (two each), radius, tint of each group, tint of the background.
OPEN = 2 * OBJECTS + 1 + 3 + 1

PALETTE = [(220, 40, 40), (245, 140, 30), (250, 215, 50), (40, 160, 70), (45, 90, 210), (130, 60, 170), (245, 150, 190), (125, 80, 45),
           (30, 30, 30), (250, 250, 250)]
PAPER = (228, 222, 210)


# --- where objects stand -------------------------------------------------------------------------------------------------------
def row(n, x, y, half_w, half_h):
    w = half_w / n
    return [(x - half_w + (2 * i + 1) * w, y, w, half_h) for i in range(n)]


def column(n, x, y, half_w, half_h):
    h = half_h / n
    return [(x, y - half_h + (2 * i + 1) * h, half_w, h) for i in range(n)]


def arrangements():
    """name -> (cells of objects: centre and half sizes; radius by size small, none, large; freedom within the cell)."""
    normal, table = (0.56, 0.74, 0.9), {}
    for n in range(1, 7):
        cells = row(n, 64, 64, 60, 60) if n <= 3 else row((n + 1) // 2, 64, 34, 60, 30) + row(n // 2, 64, 94, 60, 30)
        table["whole", n] = (cells, (0.33, 0.52, 0.72) if n == 1 else normal, 0.6)
    # Counts of a side stand next to each other: `places` counts on from the first.
    for name, cells in [("above", (row, 64, 34, 60, 30)), ("below", (row, 64, 94, 60, 30)), ("left", (column, 34, 64, 30, 60)),
                        ("right", (column, 94, 64, 30, 60))]:
        for n in range(1, 4):
            table[name, n] = (cells[0](n, *cells[1:]), normal, 0.6)
    for i in range(9):
        x, y = 26 + 38 * (i % 3), 26 + 38 * (i // 3)
        table["place", i] = ([(x, y, 20, 20)], (0.6, 0.8, 1.0), 0.6)
    table["outer", 0] = ([(64, 64, 60, 60)], (0.78, 0.78, 0.78), 0.2)
    table["inner", 0] = ([(64, 64, 20, 20)], (0.7, 0.78, 0.82), 0.6)
    return table


ARRANGED = arrangements()
ARRANGEMENT = {key: i for i, key in enumerate(ARRANGED)}
_cells = torch.zeros(len(ARRANGED), OBJECTS, 4)
for _i, (_c, _, _) in enumerate(ARRANGED.values()):
    _cells[_i, : len(_c)] = torch.tensor(_c, dtype=torch.float)
_radii = torch.tensor([r for _, r, _ in ARRANGED.values()])
_freedom = torch.tensor([f for _, _, f in ARRANGED.values()])


# --- what is said --------------------------------------------------------------------------------------------------------------
def phrases(lists, width):
    """Word sequences of equal meaning, per meaning: table [meanings, variants, width], -1 where there is no word."""
    most = max(map(len, lists))
    table = torch.full((len(lists), most, width), -1)
    for i, variants in enumerate(lists):
        for j in range(most):
            for k, word in enumerate(variants[j % len(variants)].split()):
                table[i, j, k] = W.INDEX[word]
    return table


PREFIXES = phrases([["", "", "", "", "", "", "", "", "", "a picture of", "an image of", "a drawing of", "draw", "please draw", "show"]], 3)
RELATED = phrases(
    [["above", "over"], ["below", "under", "beneath"], ["to the left of", "left of", "on the left of"],
     ["to the right of", "right of", "on the right of"], ["and", "and", "next to", "beside"], ["inside", "in"]], 4)
PLACED = phrases(
    [[f"in the {p} corner", f"in the {p}", f"at the {p}"] if " " in p
     else ["in the center", "in the middle", "in the centre", "at the center"] if p == "center"
     else [f"on the {p}"] if p in ("left", "right") else [f"at the {p}"] for p in PLACES], 5)
SMALL, LARGE = phrases([["small", "small", "tiny", "little"]], 1), phrases([["large", "big"]], 1)


def randint(n, high, g):
    return torch.randint(high, (n,), device=g.device, generator=g)


def rand(n, g):
    return torch.rand(n, device=g.device, generator=g)


def held_out(s):
    """Descriptions that training never sees: one in sixteen, by a hash of all that the caption fixes."""
    code = s["kind"] * 7919 + s["relation"] * 104729 + s["place"] * 15485863 + s["ground"] * 32452843
    for i in range(3):
        code = code * 31 + s["colour"][:, i] * 1299709 + s["shape"][:, i] * 49979687 + s["count"][:, i] * 86028121
    return (code * 2654435761 // 65536) % 16 == 3


def sample(n, g, kind=None):
    """n scenes, held-out ones among them."""
    dev = g.device
    p = rand(n, g)
    kind = torch.bucketize(p, torch.tensor([0.2, 0.4, 0.76, 0.88], device=dev)) if kind is None else torch.full((n,), kind, device=dev)
    colour = torch.randint(10, (n, 3), device=dev, generator=g)
    # Apart from each other where one stands before the other.
    ground = torch.where(rand(n, g) < 0.5, randint(n, 10, g), -1)
    for _ in range(2):
        colour = torch.where(colour == ground[:, None], (colour + 1 + torch.randint(9, (n, 3), device=dev, generator=g)) % 10, colour)
    inside = kind == INSIDE
    for _ in range(3):
        clash = inside & ((colour[:, 0] == colour[:, 1]) | (colour[:, 0] == ground))
        colour[:, 0] = torch.where(clash, (colour[:, 0] + 1) % 10, colour[:, 0])
    shape = torch.randint(7, (n, 3), device=dev, generator=g)
    # Only these have room inside.
    shape[:, 1] = torch.where(inside, torch.tensor([0, 1, 3], device=dev)[randint(n, 3, g)], shape[:, 1])
    count = torch.ones(n, 3, dtype=torch.long, device=dev)
    count[:, 0] = torch.where(kind == COUNT, 2 + randint(n, 5, g), count[:, 0])
    many = (kind == PAIR) & (rand(n, g) < 0.4)
    for i in range(2):
        count[:, i] = torch.where(many, 1 + randint(n, 3, g), count[:, i])
    groups = torch.tensor([1, 1, 2, 3, 2], device=dev)[kind]
    count = torch.where(torch.arange(3, device=dev)[None] < groups[:, None], count, 0)
    size = torch.multinomial(torch.tensor([0.2, 0.6, 0.2], device=dev), 3 * n, True, generator=g).view(n, 3)
    size[:, 1] = torch.where(inside & (size[:, 1] == 0), 2, size[:, 1])
    size[:, 0] = torch.where(inside & (size[:, 0] == 2), 0, size[:, 0])
    relation = torch.where(kind == PAIR, randint(n, 5, g), torch.where(inside, 5, -1))
    place = torch.where((kind == SINGLE) & (rand(n, g) < 0.6), randint(n, 9, g), -1)
    used = count > 0
    return dict(kind=kind, ground=ground, relation=relation, place=place, count=count, size=torch.where(used, size, 1),
                colour=torch.where(used, colour, 0), shape=torch.where(used, shape, 0))


def sample_split(n, g, held=False, kind=None):
    """n scenes of one side of the split."""
    s = sample(int(n * 1.25) + 64 if not held else 40 * n + 512, g, kind)
    at = (held_out(s) == held).nonzero()[:n, 0]
    assert len(at) == n
    return {k: v[at] for k, v in s.items()}


# --- captions ------------------------------------------------------------------------------------------------------------------
def caption_words(s, g):
    """[n, slots] word indices with gaps of -1."""
    n, dev = len(s["kind"]), g.device
    slots = []

    def add(x, when=None):
        x = x[:, None] if x.dim() == 1 else x
        slots.append(x if when is None else torch.where(when[:, None], x, -1))

    def pick(table, meaning):
        table = table.to(dev)
        return table[meaning.clamp(min=0), randint(n, table.shape[1], g)]

    word = lambda w: torch.full((n,), W.INDEX[w], device=dev)
    zero = torch.zeros(n, dtype=torch.long, device=dev)
    c0, s0, n0, p0 = (W.INDEX[x] for x in ("red", "circle", "one", "circles"))

    def noun(i):
        count, size, colour, shape = (s[k][:, i] for k in ("count", "size", "colour", "shape"))
        there = count > 0
        article = torch.where((size == 1) & (colour == 1), W.INDEX["an"], W.INDEX["a"])
        one = rand(n, g) < 0.06
        # "one", or a number, or an article; now and then nothing.
        first = torch.where((count > 1) | one, n0 + count - 1, article)
        first = torch.where((count == 1) & ~one & (rand(n, g) < 0.06), -1, first)
        add(first, there)
        add(pick(SMALL, zero), there & (size == 0))
        add(pick(LARGE, zero), there & (size == 2))
        add(c0 + colour, there)
        add(torch.where(count > 1, p0, s0) + shape, there)

    add(pick(PREFIXES, zero))
    noun(0)
    add(pick(PLACED, s["place"]), s["place"] >= 0)
    add(pick(RELATED, s["relation"]), s["relation"] >= 0)
    add(word(","), s["kind"] == ROW)
    noun(1)
    add(word(","), (s["kind"] == ROW) & (rand(n, g) < 0.5))
    add(word("and"), s["kind"] == ROW)
    noun(2)
    there, form = s["ground"] >= 0, randint(n, 4, g)
    add(torch.where(form == 3, word("against"), word("on")), there)
    article = torch.where(s["ground"] == 1, W.INDEX["an"], W.INDEX["a"])
    add(article, there & (form > 0))
    add(c0 + s["ground"], there)
    add(word("background"), there & (form > 0))
    add(word("."), rand(n, g) < 0.2)
    return torch.cat(slots, 1)


def left(x, gap=-1):
    """Rows without their gaps, which move to the end; and how many are left."""
    order = (x == gap).long().argsort(dim=1, stable=True)
    return x.gather(1, order), (x != gap).sum(1)


def captions(s, g):
    """-> word indices [n, slots] (-1 behind), capital first letters [n], ids [n, TEXT], lengths [n]."""
    said, many = left(caption_words(s, g))
    n, dev = len(said), g.device
    capital = rand(n, g) < 0.4
    forms = torch.tensor(W.FORMS, device=dev)
    ids = torch.where(said >= 0, forms[:, 0][said.clamp(min=0)], -1)
    ids[:, 0] = torch.where(capital, forms[said[:, 0], 2], forms[said[:, 0], 1])
    frame = lambda x: torch.tensor(x, device=dev)[None].expand(n, -1)
    ids, many = left(torch.cat([frame(W.START), ids, frame(W.END)], 1))
    ids = torch.where(ids < 0, W.PAD, ids)
    ids = torch.cat([ids, torch.full((n, max(0, TEXT - ids.shape[1])), W.PAD, device=dev)], 1)
    assert int(many.max()) <= TEXT
    return said, capital, ids[:, :TEXT], many


def render_text(said, capital):
    names, out = W.WORDS + W.MARKS, []
    for row_, cap in zip(said.tolist(), capital.tolist()):
        words = [names[i] for i in row_ if i >= 0]
        if cap:
            words[0] = words[0].capitalize()
        text = " ".join(words)
        out.append(text.replace(" ,", ",").replace(" .", "."))
    return out


# --- pictures ------------------------------------------------------------------------------------------------------------------
def distance(shape, x, y):
    """Signed distance to the edge, about, in radii; negative inside."""
    ax, ay = x.abs(), y.abs()
    if shape == 0:
        return (x * x + y * y).sqrt() - 1
    if shape == 1:
        return torch.maximum(ax, ay) - 0.86
    if shape == 2:
        return torch.maximum(y - 0.8, (1.8 * ax - y - 1) / 2.06)
    if shape == 3:
        return (ax + ay - 1) / 1.414
    if shape == 4:
        return torch.minimum(torch.maximum(ax - 0.95, ay - 0.33), torch.maximum(ax - 0.33, ay - 0.95))
    if shape == 5:
        # One tenth of a star: the edge from a point (1, 0) to a notch at 36 degrees.
        step = 2 * torch.pi / 5
        angle = (torch.remainder(torch.atan2(x, -y) + step / 2, step) - step / 2).abs()
        rho = (x * x + y * y).sqrt()
        notch = 0.45
        dx, dy = notch * 0.8090 - 1, notch * 0.5878
        length = (dx * dx + dy * dy) ** 0.5
        return ((rho * angle.cos() - 1) * dy - rho * angle.sin() * dx) / length
    # A square on its corner, and a circle on each upper edge.
    a = 0.8
    square = (ax + ay - a) / 1.414
    return torch.minimum(square, ((ax - a / 2) ** 2 + (y + a / 2) ** 2).sqrt() - a / 1.414)


def places(s, open_):
    """-> group of each object (-1 for none), x, y, radius: [n, OBJECTS] each."""
    dev, n = s["kind"].device, len(s["kind"])
    kind, relation, count = s["kind"], s["relation"], s["count"]
    at = lambda key: ARRANGEMENT[key]
    whole = at(("whole", 1)) + count[:, 0].clamp(min=1) - 1
    first = torch.where(s["place"] >= 0, at(("place", 0)) + s["place"], whole)
    side = torch.tensor([at((name, 1)) for name in ("above", "below", "left", "right", "left", "above")], device=dev)
    other = torch.tensor([at((name, 1)) for name in ("below", "above", "right", "left", "right", "above")], device=dev)
    r = relation.clamp(min=0)
    pair = kind == PAIR
    first = torch.where(pair, side[r] + count[:, 0] - 1, first)
    second = torch.where(pair, other[r] + count[:, 1].clamp(min=1) - 1, 0)
    first = torch.where(kind == INSIDE, at(("inner", 0)), first)
    second = torch.where(kind == INSIDE, at(("outer", 0)), second)
    row3 = at(("whole", 3))
    arrangement = torch.stack([torch.where(kind == ROW, row3, first), torch.where(kind == ROW, row3, second), torch.full_like(first, row3)], 1)

    ends = count.cumsum(1)
    k = torch.arange(OBJECTS, device=dev)[None].expand(n, -1)
    group = (k >= ends[:, :1]).long() + (k >= ends[:, 1:2]).long()
    there = k < ends[:, 2:]
    index = torch.where(kind[:, None] == ROW, k, k - (ends - count).gather(1, group))
    arr = arrangement.gather(1, group)
    cell = _cells.to(dev)[arr, index.clamp(0, OBJECTS - 1)]
    size = s["size"].gather(1, group)
    half = torch.minimum(cell[..., 2], cell[..., 3])
    u = 2 * open_ - 1
    radius = half * _radii.to(dev)[arr, size] * (1 + 0.1 * u[:, 12:13])
    free = _freedom.to(dev)[arr]
    # A cell that is much longer than wide is not used up to its ends.
    reach = lambda full: free * torch.minimum(full - radius, 1.2 * half).clamp(min=0)
    x = cell[..., 0] + u[:, 0:12:2] * reach(cell[..., 2])
    y = cell[..., 1] + u[:, 1:12:2] * reach(cell[..., 3])
    return torch.where(there, group, -1), x, y, radius


def draw(s, open_):
    """Pictures [n, 3, SIDE, SIDE] in -1..1; a group inside another is drawn last."""
    dev, n = open_.device, len(open_)
    group, x, y, radius = places(s, open_)
    u = 2 * open_ - 1
    palette = torch.tensor(PALETTE + [PAPER], device=dev).float() / 255
    tint = lambda colour, amount: (colour * (1 + 0.04 * amount[:, None])).clamp(0, 1)
    picture = tint(palette[torch.where(s["ground"] < 0, 10, s["ground"])], u[:, 16])[:, :, None, None].expand(-1, -1, SIDE, SIDE).contiguous()
    shape = torch.where(group < 0, -1, s["shape"].gather(1, group.clamp(min=0)))
    line = torch.arange(SIDE, device=dev).float() + 0.5
    alpha = torch.zeros(n, OBJECTS, SIDE, SIDE, device=dev, dtype=torch.float16)
    for i in range(7):
        b, k = (shape == i).nonzero(as_tuple=True)
        if len(b) == 0:
            continue
        r = radius[b, k][:, None, None]
        px = (line[None, None, :] - x[b, k][:, None, None]) / r
        py = (line[None, :, None] - y[b, k][:, None, None]) / r
        px, py = torch.broadcast_tensors(px, py)
        alpha[b, k] = (0.5 - distance(i, px, py) * r).clamp(0, 1).half()
    # Backwards, so that the first group stands before the second.
    for k in reversed(range(OBJECTS)):
        g = group[:, k].clamp(min=0)
        colour = tint(palette[s["colour"].gather(1, g[:, None])[:, 0]], u.gather(1, 13 + g[:, None])[:, 0])
        a = alpha[:, k, None].float()
        picture = picture + a * (colour[:, :, None, None] - picture)
    return picture * 2 - 1


def tie(noise, open_):
    """Noise [n, tokens, 128] whose mean over the tokens in channel i is the normal quantile of open number i."""
    tokens = noise.shape[1]
    wanted = torch.erfinv((2 * open_ - 1).clamp(-0.998, 0.998)) * (2 / tokens) ** 0.5
    head = noise[..., :OPEN]
    return torch.cat([head + (wanted[:, None] - head.mean(1, keepdim=True)), noise[..., OPEN:]], -1)


def open_of(noise):
    """The open numbers that noise stands for."""
    tokens = noise.shape[1]
    return 0.5 + 0.5 * torch.erf(noise[..., :OPEN].mean(1) * (tokens / 2) ** 0.5)
