"""Held-out prompts with what they describe, for the engine's test: python held_out.py > held_out.json

The floors are left at 0; set them by what the models get right.
"""
import json

import torch

import scenes as S
import words as W

EACH = 5


def case(s, i, prompt):
    colour = lambda c: "paper" if c < 0 else W.COLOURS[c]
    groups = [dict(colour=colour(int(s["colour"][i, k])), shape=W.SHAPES[int(s["shape"][i, k])], count=int(s["count"][i, k]))
              for k in range(3) if s["count"][i, k] > 0]
    relation, place = int(s["relation"][i]), int(s["place"][i])
    # "And", "next to" and "beside" leave the order open.
    named = {**dict(enumerate(S.RELATIONS[:4])), 5: "inside"}.get(relation)
    return dict(prompt=prompt, ground=colour(int(s["ground"][i])), groups=groups, relation=named,
                place=None if place < 0 else [place % 3, place // 3])


def main():
    g = torch.Generator().manual_seed(51)
    cases = []
    for kind in range(len(S.KINDS)):
        s = S.sample_split(EACH, g, held=True, kind=kind)
        said, capital, _, _ = S.captions(s, g)
        cases += [case(s, i, text) for i, text in enumerate(S.render_text(said, capital))]
    lines = ",\n".join("    " + json.dumps(c) for c in cases)
    print('{\n  "floors": {"sprout": 0, "sprout-ternary": 0},\n  "cases": [\n' + lines + "\n  ]\n}")


if __name__ == "__main__":
    main()
