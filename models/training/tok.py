"""The teacher's tokenizer (read from its GGUF) and the student's: the first merges of the same byte-level BPE, so that
every teacher token is a fixed list of student tokens and the teacher's distribution carries over to the first piece.

    python tok.py TEACHER.gguf OUT_DIR      writes tokenizer.json, tokenizer_config.json
"""
import json
import sys

import numpy as np

VOCAB = 12288
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + n)
            n += 1
    return out


def select_merges(merges, count):
    """The first merges by rank, without newline runs (the student's splitter glues newlines, the teacher's does not)."""
    out = []
    for m in merges:
        a, b = m.split(" ")
        if "Ċ" in a + b or "č" in a + b:
            continue
        out.append((a, b))
        if len(out) == count:
            break
    return out


def student_json(merges):
    bc = byte_chars()
    vocab = {bc[b]: b for b in range(256)}
    picked = []
    want = VOCAB - 256 - len(SPECIALS) - len(MARKS)
    for a, b in merges:
        if len(vocab) - 256 == want:
            break
        picked.append([a, b])
        vocab.setdefault(a + b, len(vocab))
    base = len(vocab)
    assert base == 256 + want, (base, want)
    added = []
    for i, t in enumerate(SPECIALS + MARKS):
        added.append({"id": base + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": t in SPECIALS})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": dict(byte_level),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": picked},
    }


def tokenizer_config(tj):
    return {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")} for t in tj["added_tokens"]},
        "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 2048, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }


def teacher_tokenizer(meta):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    toks, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(toks)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x, k in zip(toks, types) if k == 3])
    return t


def pieces(meta, student):
    """-> table [teacher vocab, max pieces] int32 of student ids and their counts; teacher specials map by name or to nothing"""
    vocab, merges = student["model"]["vocab"], {tuple(m): i for i, m in enumerate(student["model"]["merges"])}
    special = {t["content"]: t["id"] for t in student["added_tokens"]}
    rows = []
    for t, k in zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]):
        if k == 3:
            rows.append([special[t]] if t in special else [])
            continue
        p = list(t)
        while len(p) > 1:
            r, j = min((merges.get((p[i], p[i + 1]), 1 << 30), i) for i in range(len(p) - 1))
            if r == 1 << 30:
                break
            p[j : j + 2] = [p[j] + p[j + 1]]
        rows.append([vocab[x] for x in p])
    n = max(map(len, rows))
    table = np.zeros((len(rows), n), np.int32)
    count = np.array([len(r) for r in rows], np.int32)
    for i, r in enumerate(rows):
        table[i, : len(r)] = r
    return table, count


def build(meta):
    return student_json(select_merges(meta["tokenizer.ggml.merges"], VOCAB))


if __name__ == "__main__":
    from gguf import Gguf

    tj = build(Gguf(sys.argv[1]).meta)
    with open(sys.argv[2] + "/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(tj, f, ensure_ascii=False, separators=(",", ":"))
    with open(sys.argv[2] + "/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(tokenizer_config(tj), f, indent=1, ensure_ascii=False)
