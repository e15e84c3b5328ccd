"""How well the teacher predicts the held-out texts, for the model cards. Needs numpy and tokenizers, no torch and no GPU.

    python score_teacher.py TEACHER.gguf FILE...     one JSON object a line (two for a text with answers)
    python score_teacher.py TEACHER.gguf --greedy "What is the sea?"     what it answers, as a check of the arithmetic

`heldout_text.py` says how texts are cut and counted. Perplexity is per token of the teacher, so only bits per byte compare with a
student, whose tokens are shorter. A text with assistant turns is scored in two ways:

    as written        with the empty think block of the student's template, which the teacher never saw
    no think block    with those blocks taken out, as the teacher wrote it (but for system prompts that were not recorded)
"""
import argparse
import sys

import numpy as np

import heldout_text
from gguf import Gguf
from tok import teacher_tokenizer

HEAD_ROWS = 256  # of the head at a time: 50 MB of logits


class Llama:
    """The forward pass of a Llama GGUF in f32: grouped-query attention, SwiGLU, RMS norm, rotary over neighbouring pairs
    (a GGUF of this architecture has its query and key rows permuted for that)."""

    def __init__(self, g):
        if g.meta["general.architecture"] != "llama":
            sys.exit(f"the teacher's architecture is {g.meta['general.architecture']!r}, not 'llama'; name the GGUF of SmolLM2-135M-Instruct")
        m = {k.removeprefix("llama."): v for k, v in g.meta.items()}
        self.heads, self.kv = m["attention.head_count"], m["attention.head_count_kv"]
        self.dim = m["embedding_length"] // self.heads
        if m["rope.dimension_count"] != self.dim:
            sys.exit(f"rotary over {m['rope.dimension_count']} of {self.dim} values of a head; this script turns all of them")
        self.context, self.eps = m["context_length"], np.float32(m["attention.layer_norm_rms_epsilon"])
        self.freq = m["rope.freq_base"] ** (-np.arange(0, self.dim, 2) / self.dim)
        names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        self.layers = [{n: g.tensor(f"blk.{i}.{n}.weight") for n in names} for i in range(m["block_count"])]
        self.emb, self.norm = g.tensor("token_embd.weight"), g.tensor("output_norm.weight")
        self.head = g.tensor("output.weight") if "output.weight" in g.tensors else self.emb

    def rms(self, x, w):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.eps) * w

    def attention(self, q, k, v):
        """Causal, one sequence: q [T, heads, dim], k and v [T, kv, dim] -> [T, heads * dim]"""
        T, group = len(q), self.heads // self.kv
        q = q.reshape(T, self.kv, group, self.dim).transpose(1, 2, 0, 3)
        out = np.empty((T, self.kv, group, self.dim), np.float32)
        future = np.triu(np.full((T, T), -np.inf, np.float32), 1)
        for h in range(self.kv):
            s = q[h] @ k[:, h].T * np.float32(self.dim**-0.5) + future
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = (s / s.sum(-1, keepdims=True) @ v[:, h]).transpose(1, 0, 2)
        return out.reshape(T, -1)

    def states(self, sequences):
        """Token ids of several sequences -> their final states, one under the other [sum of lengths, hidden]. The sequences
        share the matrix products and nothing else."""
        lengths = [len(s) for s in sequences]
        cuts = np.cumsum(lengths)[:-1]
        angle = np.concatenate([np.arange(n) for n in lengths])[:, None, None] * self.freq
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

        def rotate(x, heads):
            x = x.reshape(len(x), heads, self.dim // 2, 2)
            a, b = x[..., 0], x[..., 1]
            return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(len(x), heads, self.dim)

        x = self.emb[np.concatenate(sequences)]
        for w in self.layers:
            y = self.rms(x, w["attn_norm"])
            q, k = rotate(y @ w["attn_q"].T, self.heads), rotate(y @ w["attn_k"].T, self.kv)
            v = (y @ w["attn_v"].T).reshape(-1, self.kv, self.dim)
            parts = zip(*(np.split(t, cuts) for t in (q, k, v)))
            x = x + np.concatenate([self.attention(*p) for p in parts]) @ w["attn_output"].T
            y = self.rms(x, w["ffn_norm"])
            gate = y @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w["ffn_up"].T)) @ w["ffn_down"].T
        return self.rms(x, self.norm)

    def score(self, sequences, targets):
        """-> per token of the concatenated targets: -ln p (f64), whether it was the likeliest"""
        x, wanted = self.states(sequences), np.concatenate(targets)
        loss, hit = np.empty(len(wanted)), np.empty(len(wanted), bool)
        for i in range(0, len(wanted), HEAD_ROWS):
            rows, t = x[i : i + HEAD_ROWS] @ self.head.T, wanted[i : i + HEAD_ROWS]
            top, own = rows.max(-1), rows[np.arange(len(t)), t]
            loss[i : i + HEAD_ROWS] = np.log(np.exp(rows - top[:, None]).sum(-1, dtype=np.float64)) + top - own
            hit[i : i + HEAD_ROWS] = rows.argmax(-1) == t
        return loss, hit


def greedy(model, tokenizer, question, most=60):
    ids = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
    start, end = len(ids), tokenizer.token_to_id("<|im_end|>")
    while len(ids) < start + most:
        best = int((model.states([np.array(ids)])[-1] @ model.head.T).argmax())
        if best == end:
            break
        ids.append(best)
    return tokenizer.decode(ids[start:])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("teacher", help="GGUF of the teacher")
    a.add_argument("files", nargs="*", help="texts with <|endoftext|> between documents")
    a.add_argument("--window", type=int, default=2048, help="teacher tokens that are read from one empty context [2048]")
    a.add_argument("--greedy", metavar="QUESTION", help="print the answer to a question, greedy, at most 60 tokens")
    a = a.parse_args()
    if not a.files and a.greedy is None:
        sys.exit("nothing to do: name a text, or a question with --greedy")
    g = Gguf(a.teacher)
    model, tokenizer = Llama(g), teacher_tokenizer(g.meta)
    if not 1 <= a.window <= model.context:
        sys.exit(f"--window is 1 to the teacher's context of {model.context}, got {a.window}")
    if a.greedy is not None:
        print(greedy(model, tokenizer, a.greedy))
    for path in a.files:
        text = heldout_text.read(path)
        heldout_text.report(model.score, tokenizer, path, "as written", text, a.window)
        if heldout_text.THINK in text:
            heldout_text.report(model.score, tokenizer, path, "no think block", text.replace(heldout_text.THINK, ""), a.window)


if __name__ == "__main__":
    main()
