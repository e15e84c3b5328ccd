#!/usr/bin/env python3
"""Makes testdata/golden from full golden cases: smaller expected outputs, no chat templates.

usage: shrink.py FULL_DIR testdata/golden        (FULL_DIR holds the folders that the gen_*.py scripts wrote)

What changes, case by case:
  * `expected.safetensors` keeps what the tests read. Prompts of 1, 7 and 65 tokens keep every logit row; of 64, 130
    and 200 tokens the rows listed in `logit_rows.N` (chunk borders and the end). Hidden states stay in the cases of
    HIDDEN, the recurrent state in those of STATE.
  * `expected.json` keeps margins, noise measurements and tokenizer encodings, and the chat renderings that are the
    bare turn markers.
  * Chat templates belong to the models' own files: they are removed from `tokenizer_config.json` and from GGUF.
  * Large tensors that a text model never reads are dropped: of the vision tower, and of one MTP head of two.
  * A GGUF twin points at its original (`gguf.json`, key `twin_of`) and has no expected files of its own. Its F16
    `ssm_out` tensors, each group of which is {-d, +d}, become Q4_0, Q4_1, Q8_0 and F16 in turn: no value changes.
"""

import json, os, shutil, sys
import numpy as np
import gguf_file
from check import read_safetensors

KEEP_ROWS = {
    64: [0, 1, 31, 62, 63],
    130: [0, 63, 64, 65, 127, 128, 129],
    200: [0, 63, 64, 127, 128, 191, 192, 198, 199],
}
HIDDEN = {"qwen3_1bit_tied_yarn", "qwen3_mixed", "qwen35_1bit_tied_ld64", "qwen35_hf_bf16"}
STATE = {"qwen35_1bit_tied_ld64"}
TWINS = ["gguf_qwen3_1bit_tied_yarn", "gguf_qwen3_1bit_untied", "gguf_qwen3_2bit_ternary", "gguf_qwen35_1bit_mtp"]
SSM_OUT = ["Q4_0", "Q8_0", "Q4_1", "F16", "Q4_0", "Q4_1"]
NAMES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint32": "U32"}


def write_raw(path, header, blobs):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name])
        header[name] = {"dtype": NAMES[str(a.dtype)], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        blobs.append(a.tobytes())
        at += a.nbytes
    write_raw(path, header, blobs)


def drop_tensors(src, dst, drop):
    """Copies a safetensors file without the tensors for which drop(name, bytes) holds. Returns the dropped names."""
    data = open(src, "rb").read()
    n = int.from_bytes(data[:8], "little")
    old, base = json.loads(data[8 : 8 + n]), 8 + n
    header, blobs, at, dropped = {}, [], 0, set()
    if "__metadata__" in old:
        header["__metadata__"] = old.pop("__metadata__")
    for name, t in sorted(old.items(), key=lambda kv: kv[1]["data_offsets"]):
        start, end = t["data_offsets"]
        if drop(name, end - start):
            dropped.add(name)
            continue
        header[name] = dict(t, data_offsets=[at, at + end - start])
        blobs.append(data[base + start : base + end])
        at += end - start
    write_raw(dst, header, blobs)
    return dropped


def ballast(case):
    unread = ("vision_tower", "model.visual") + (("mtp.",) if case == "qwen35_hf_bf16" else ())
    return lambda name, size: size > 9000 and any(part in name for part in unread)


def expected_tensors(case, x):
    keep = {}
    for name, a in x.items():
        kind, _, tail = name.partition(".")
        if name.startswith("logits.") and int(tail) in KEEP_ROWS:
            rows = KEEP_ROWS[int(tail)]
            keep[name], keep[f"logit_rows.{tail}"] = a[rows], np.array(rows, np.int32)
        elif kind in ("ids", "logits", "decode5", "rope") or name.startswith("greedy.ids"):
            keep[name] = a
        elif kind in ("hidden", "final_norm") and case in HIDDEN:
            keep[name] = a
        elif kind == "state" and case in STATE:
            keep[name] = a
    return keep


def expected_facts(info):
    chat = info["tokenizer"]["chat"]
    info["tokenizer"]["chat"] = [c for c in chat if "text" in c and "tools" not in c["kwargs"]]
    return info


def text_case(src, dst):
    case = os.path.basename(src)
    for f in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copyfile(f"{src}/{f}", f"{dst}/{f}")
    tc = json.load(open(f"{src}/tokenizer_config.json"))
    tc.pop("chat_template", None)
    json.dump(tc, open(f"{dst}/tokenizer_config.json", "w"), indent=1, ensure_ascii=False)
    dropped = set()
    for f in sorted(os.listdir(src)):
        if f.startswith("model") and f.endswith(".safetensors"):
            dropped |= drop_tensors(f"{src}/{f}", f"{dst}/{f}", ballast(case))
    index = json.load(open(f"{src}/model.safetensors.index.json"))
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if k not in dropped}
    json.dump(index, open(f"{dst}/model.safetensors.index.json", "w"), indent=0)
    write_safetensors(
        f"{dst}/expected.safetensors", expected_tensors(case, read_safetensors(f"{src}/expected.safetensors"))
    )
    json.dump(expected_facts(json.load(open(f"{src}/expected.json"))), open(f"{dst}/expected.json", "w"))


def sign_blocks(values, kind):
    """F16 rows whose 32-blocks are {-d, +d}, as Q4_0, Q4_1 or Q8_0 blocks of the same values."""
    b = values.reshape(-1, 32).astype(np.float32)
    d = np.abs(b[:, :1])
    assert (np.abs(b) == d).all(), "a block has more than one magnitude"
    up = (b > 0).astype(np.uint8)
    half = lambda a: a.astype(np.float16).view(np.uint8)
    if kind == "Q4_0":  # d * (code - 8)
        code = 7 + 2 * up
        return np.concatenate([half(d), code[:, :16] | code[:, 16:] << 4], 1)
    if kind == "Q4_1":  # 2d * code - d
        return np.concatenate([half(2 * d), half(-d), up[:, :16] | up[:, 16:] << 4], 1)
    return np.concatenate([half(d), (2 * up.astype(np.int8) - 1).view(np.uint8)], 1)  # Q8_0: d * code


def gguf_twin(src, dst):
    g = gguf_file.read(f"{src}/model.gguf")
    g.drop_key("tokenizer.chat_template")
    ssm_out = [t for t in g.tensors if t.name.endswith("ssm_out.weight") and t.type_name() == "F16"]
    for i, t in enumerate(ssm_out):
        kind = SSM_OUT[i % len(SSM_OUT)]
        if kind != "F16":
            t.replace(kind, sign_blocks(np.frombuffer(t.data, np.float16), kind).tobytes())
    g.write(f"{dst}/model.gguf")
    types = {}
    for t in g.tensors:
        types[t.type_name()] = types.get(t.type_name(), 0) + 1
    twin = json.load(open(f"{src}/gguf.json"))["twin_of"]
    json.dump({"twin_of": twin, "tensor_types": types}, open(f"{dst}/gguf.json", "w"), indent=1)


def main():
    full, out = sys.argv[1], sys.argv[2]
    cases = sorted(c for c in os.listdir(full) if c.startswith(("qwen3_", "qwen35_")) and "vision" not in c)
    for case in cases + TWINS:
        dst = f"{out}/{case}"
        shutil.rmtree(dst, ignore_errors=True)
        os.makedirs(dst)
        (gguf_twin if case in TWINS else text_case)(f"{full}/{case}", dst)
        size = sum(os.path.getsize(f"{dst}/{f}") for f in os.listdir(dst))
        print(f"{case:28s} {size / 1e6:.2f} MB")
    total = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(out) for f in files)
    print(f"{'all':28s} {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
