"""The words that captions are made of, and a byte-level BPE tokenizer in which each of them is one token.

The merges join a word from its start, on top of what the words before it merge already. Words behind a space come first.
`token` checks that every word is one token.
"""

COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]
SHAPES = ["circle", "square", "triangle", "diamond", "cross", "star", "heart"]
PLURALS = ["circles", "squares", "triangles", "diamonds", "crosses", "stars", "hearts"]
NUMBERS = ["one", "two", "three", "four", "five", "six"]
OTHER = (
    "a an the small tiny little large big in at on of to top bottom left right corner center centre middle above over below under "
    "beneath next beside and inside background against picture image drawing draw show please with"
).split()
WORDS = COLOURS + SHAPES + PLURALS + NUMBERS + OTHER
MARKS = [",", "."]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_letters():
    """GPT-2's printable letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + extra)
            extra += 1
    return [letters[b] for b in range(256)]


LETTERS = byte_letters()


def spell(text):
    return [LETTERS[b] for b in text.encode()]


def bpe(piece, ranks):
    parts = spell(piece)
    while len(parts) > 1:
        rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
        if rank == len(ranks):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def build():
    """-> vocab {token: id} with the special tokens behind, ranks of the merges."""
    firsts = ["user", "assistant", "\n\n"] + WORDS + [w.capitalize() for w in WORDS]
    vocab, ranks = {letter: i for i, letter in enumerate(LETTERS)}, {}
    for word in [" " + w for w in WORDS] + firsts:
        # What earlier words merge already stays merged, and the rest joins it from the left.
        first, *rest = bpe(word, ranks)
        for part in rest:
            ranks[first, part] = len(ranks)
            vocab.setdefault(first + part, len(vocab))
            first += part
    for mark in SPECIALS:
        vocab[mark] = len(vocab)
    return vocab, ranks


VOCAB, RANKS = build()
# Rows of the embedding: a multiple of 64 is kind to kernels.
SIZE = -(-len(VOCAB) // 64) * 64


def token(piece):
    parts = bpe(piece, RANKS)
    assert len(parts) == 1, (piece, parts)
    return VOCAB[parts[0]]


FORMS = [[token(" " + w), token(w), token(w.capitalize())] for w in WORDS] + [[token(m)] * 3 for m in MARKS]
INDEX = {w: i for i, w in enumerate(WORDS + MARKS)}
PAD = VOCAB["<|endoftext|>"]
START = [VOCAB["<|im_start|>"], token("user"), token("\n")]
END = [VOCAB["<|im_end|>"], token("\n"), VOCAB["<|im_start|>"], token("assistant"), token("\n"), VOCAB["<think>"], token("\n\n"),
       VOCAB["</think>"], token("\n\n")]


def tokenizer_json():
    added = [dict(id=VOCAB[s], content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for s in SPECIALS]
    plain = {t: i for t, i in VOCAB.items() if t not in SPECIALS}
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    split = dict(type="Split", pattern={"Regex": PATTERN}, behavior="Isolated", invert=False)
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": byte_level,
        "decoder": dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": plain, "merges": [list(pair) for pair in RANKS],
        },
    }


if __name__ == "__main__":
    print(len(VOCAB), SIZE, len(WORDS))
