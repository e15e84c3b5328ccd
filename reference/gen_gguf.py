"""Case family (e): GGUF twins. For an MLX case folder, rebuild a float32 HF checkpoint (from the packed files), run llama.cpp's own
converter (conversion/, vendored in the llama-cpp-python sdist) to an F32 GGUF, then re-encode EXACTLY:
  * every tensor whose 128-blocks are all {-d,+d} with d exact in f16           -> Q1_0 (type 41: f16 d, 16 bytes, bit j of byte i = element 8i+j)
  * ternary tensors whose 64-blocks are all {-d,0,+d}                            -> Q2_0 (type 42, upstream block 64: f16 d, 16 bytes, 2-bit codes, q-1)
  * other 2-D tensors exact in f16 -> F16, everything else stays F32.
The result is a lossless twin: the expected logits are those of the MLX case.
usage: gen_gguf.py CASE_DIR OUT_DIR"""

import json, os, sys, shutil, subprocess, tempfile
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
LL = os.environ.get("LLAMA_CPP", "llama.cpp")  # the tree vendored in the llama-cpp-python sdist
sys.path.insert(0, LL + "/gguf-py")
sys.path.insert(0, LL)


def hf_checkpoint(case, out):
    import torch
    from safetensors.torch import save_file
    from check import Pack

    P = Pack(case)
    cfg = {k: v for k, v in P.cfg.items() if k not in ("quantization", "quantization_config")}
    q35 = "text_config" in cfg
    sd = {}
    for n in P.t:
        if n.endswith((".scales", ".biases")) or n.startswith("vision_tower") or n.startswith("model.visual"):
            continue
        base = n[:-7] if n.endswith(".weight") else n
        a = P.mat(base) if n.endswith(".weight") and P.t[n].ndim == 2 else P.t[n]
        a = np.asarray(a, dtype=np.float32)
        h = n
        if q35 and not P.hf:
            h = (
                n.replace("language_model.model.", "model.language_model.", 1)
                if n.startswith("language_model.model.")
                else n[len("language_model.") :]
            )
            if n.endswith("conv1d.weight"):
                a = np.moveaxis(a, 2, 1)
            if a.ndim == 1 and n.endswith("norm.weight") and not n.endswith("linear_attn.norm.weight"):
                a = a - 1.0
            elif a.ndim == 1 and "pre_fc_norm" in n:
                a = a - 1.0
        sd[h] = torch.from_numpy(np.ascontiguousarray(a))
    os.makedirs(out, exist_ok=True)
    save_file(sd, out + "/model.safetensors", metadata={"format": "pt"})
    json.dump(cfg, open(out + "/config.json", "w"), indent=1)
    for f in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if os.path.exists(case + "/" + f):
            shutil.copy(case + "/" + f, out)
    return cfg


def convert(hf, outfile, pre, mtp=True):
    import conversion.base as cb

    for cls in (cb.TextModel,):
        cls.get_vocab_base_pre = lambda self, tok: pre
    import convert_hf_to_gguf as c

    sys.argv = ["convert_hf_to_gguf.py", hf, "--outtype", "f32", "--outfile", outfile] + ([] if mtp else ["--no-mtp"])
    c.main()


def q1_0(a):
    b = a.reshape(-1, 128)
    d = np.abs(b[:, :1])
    if not ((np.abs(b) == d).all() and (d.astype(np.float16).astype(np.float32) == d).all() and (d > 0).all()):
        return None
    bits = np.packbits((b > 0).astype(np.uint8), axis=1, bitorder="little")
    return np.concatenate([d.astype(np.float16).view(np.uint8), bits], 1).reshape(a.shape[0], -1)


def q2_0(a):
    b = a.reshape(-1, 64)
    d = np.abs(b).max(1, keepdims=True)
    if not (((np.abs(b) == d) | (b == 0)).all() and (d.astype(np.float16).astype(np.float32) == d).all()):
        return None
    q = (np.sign(b) + 1).astype(np.uint8).reshape(-1, 16, 4)
    by = q[..., 0] | (q[..., 1] << 2) | (q[..., 2] << 4) | (q[..., 3] << 6)
    return np.concatenate([d.astype(np.float16).view(np.uint8), by.astype(np.uint8)], 1).reshape(a.shape[0], -1)


def rewrite(src, dst, arch, allow_q2):
    import gguf

    r = gguf.GGUFReader(src)
    w = gguf.GGUFWriter(dst, arch)
    stats = {}
    has_q2 = False
    enc = []
    for t in r.tensors:
        a = np.array(t.data)
        if a.dtype == np.float16:
            a = a.astype(np.float32)
        assert a.dtype == np.float32, (t.name, a.dtype)
        e = None
        if a.ndim == 2 and a.shape[1] % 128 == 0:
            x = q1_0(a)
            if x is not None:
                e = (x, gguf.GGMLQuantizationType.Q1_0)
            else:
                x = (
                    q2_0(a) if allow_q2 else None
                )  # 1-bit twins stay pure Q1_0 (+F16 where the head reorder breaks the 128-groups)
                if x is not None:
                    e = (x, gguf.GGMLQuantizationType.Q2_0)
                    has_q2 = True
        if (
            e is None
            and a.ndim == 2
            and "ssm_conv1d" not in t.name
            and (a.astype(np.float16).astype(np.float32) == a).all()
        ):
            e = (a.astype(np.float16), None)
        if e is None:
            e = (a, None)
        k = "F16/F32 " + str(e[0].dtype) if e[1] is None else e[1].name
        stats.setdefault(k, []).append(t.name)
        enc.append((t.name, e))
    for f in r.fields.values():
        if f.name in ("general.architecture",) or f.name.startswith("GGUF."):
            continue
        vt = f.types[0]
        st = f.types[-1] if vt == gguf.GGUFValueType.ARRAY else None
        val = f.contents()
        if f.name == "general.file_type":
            val = int(gguf.LlamaFileType.MOSTLY_Q2_0 if has_q2 else gguf.LlamaFileType.MOSTLY_Q1_0)
        w.add_key_value(f.name, val, vt, sub_type=st)
    for n, (a, ty) in enc:
        w.add_tensor(n, np.ascontiguousarray(a), raw_dtype=ty)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return {k: (len(v), v[:4]) for k, v in stats.items()}


def main():
    case, out = sys.argv[1].rstrip("/"), sys.argv[2].rstrip("/")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    with tempfile.TemporaryDirectory() as td:
        cfg = hf_checkpoint(case, td + "/hf")
        q35 = "text_config" in cfg
        convert(
            td + "/hf",
            td + "/f32.gguf",
            "qwen35" if q35 else "qwen2",
            mtp=not q35 or cfg["text_config"]["mtp_num_hidden_layers"] > 0,
        )
        st = rewrite(td + "/f32.gguf", out + "/model.gguf", "qwen35" if q35 else "qwen3", "2bit" in case)
    from safetensors.numpy import load_file, save_file as nsave

    X = load_file(
        case + "/expected.safetensors"
    )  # same expected outputs, without the hidden states and the HF-layout recurrent state
    nsave(
        {k: v for k, v in X.items() if not k.startswith(("hidden", "final_norm", "state."))},
        out + "/expected.safetensors",
    )
    shutil.copy(case + "/expected.json", out)
    json.dump({"twin_of": os.path.basename(case), "tensor_types": st}, open(out + "/gguf.json", "w"), indent=1)
    print("OK", out, {k: v[0] for k, v in st.items()}, os.path.getsize(out + "/model.gguf"))


main()
