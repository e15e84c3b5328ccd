"""Checks the chunked delta rule (values and gradients) against a float64 token loop, on every device that is there.
--hf also compares the whole network with transformers' Qwen3.5 code (needs transformers >= 5.17)."""
import sys

import torch

import model as M


def loop(q, k, v, g, beta):
    B, T, H, D = q.shape
    S = torch.zeros(B, H, D, v.shape[-1], dtype=q.dtype, device=q.device)
    out = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None, None]
        m = torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        d = beta[:, t][..., None] * (v[:, t] - m)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], d)
        out.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(out, 1)


def rel(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def delta(device, dtype, T, C, compiled, same=False):
    torch.manual_seed(3)
    B, H, D, V = 2, 3, 128, 64
    q = torch.nn.functional.normalize(torch.randn(B, T, H, D, dtype=torch.float64), dim=-1) * D**-0.5
    k = torch.nn.functional.normalize(torch.randn(B, T, H, D, dtype=torch.float64) * (0.02 if same else 1) + (1.0 if same else 0.3), dim=-1)
    v = torch.randn(B, T, H, V, dtype=torch.float64)
    g = -torch.rand(B, T, H, dtype=torch.float64) * torch.tensor([0.001, 0.1, 3.0])
    be = torch.rand(B, T, H, dtype=torch.float64)
    w = torch.randn(B, T, H, V, dtype=torch.float64)
    # both sides see the inputs as rounded to the tested dtype
    ref = [t.to(dtype if i < 3 else torch.float32).double().to(device).requires_grad_() for i, t in enumerate((q, k, v, g, be))]
    o = loop(*ref)
    (o * w.to(device)).sum().backward()
    got = [t.detach().to(dtype if i < 3 else (torch.float32 if dtype != torch.float64 else dtype)).requires_grad_() for i, t in enumerate(ref)]
    f = torch.compile(M.delta_rule, dynamic=False) if compiled else M.delta_rule
    y = f(*got, C)
    (y * w.to(device, y.dtype)).sum().backward()
    errs = [rel(y, o)] + [rel(a.grad, b.grad) for a, b in zip(got, ref)]
    lim = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}[dtype]
    ok = max(errs) < lim
    print(f"delta {device} {str(dtype)[6:]} T={T} C={C} compiled={compiled} same_keys={same}: out, dq, dk, dv, dg, dbeta =", " ".join(f"{e:.1e}" for e in errs), "ok" if ok else "FAIL", flush=True)
    return ok


def hf():
    import quant
    from transformers.models.qwen3_5 import modeling_qwen3_5 as Q
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    c = M.Config(vocab=384, hidden=128, layers=4, inter=256, heads=4, kv_heads=2, head_dim=64, lk_heads=1, lv_heads=2, chunk=32)
    m = M.Model(c, "cpu", torch.float32)
    gen = torch.Generator().manual_seed(1)
    quant.init_latents(m, gen, copy_to_model=True)
    m.init_small(gen)
    with torch.no_grad():
        for n in m.smalls:
            if n.endswith("norm.weight"):
                m.p[n].copy_(1 + 0.2 * torch.randn(m.p[n].shape, generator=gen))
    hc = Qwen3_5TextConfig(vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.inter, num_hidden_layers=c.layers, num_attention_heads=c.heads,
                           num_key_value_heads=c.kv_heads, head_dim=c.head_dim, linear_conv_kernel_dim=4, linear_key_head_dim=c.lk_dim, linear_value_head_dim=c.lv_dim,
                           linear_num_key_heads=c.lk_heads, linear_num_value_heads=c.lv_heads, tie_word_embeddings=False, rms_norm_eps=c.eps,
                           rope_parameters={"rope_type": "default", "rope_theta": c.theta, "partial_rotary_factor": c.partial, "mrope_section": [3, 3, 2], "mrope_interleaved": True})
    net = Q.Qwen3_5ForCausalLM(hc).eval()
    sd = net.state_dict()
    for n in sd:
        base = n[: -len(".weight")]
        if n == "model.norm.weight":
            t = torch.zeros_like(sd[n])
        elif n in m.smalls:
            t = m.p[n].detach()
            if n.endswith("conv1d.weight"):
                t = t[:, None, :]
            elif n.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight")):
                t = t - 1
        else:
            t = m.p[base].detach()
        sd[n] = t.clone()
    net.load_state_dict(sd)
    ids = torch.randint(0, c.vocab, (2, 96), generator=gen)
    with torch.no_grad():
        a, b = m.logits(ids), net(ids).logits
    e = rel(a, b)
    print(f"whole network against transformers: rel {e:.1e}", "ok" if e < 1e-4 else "FAIL")
    return e < 1e-4


if __name__ == "__main__":
    ok = True
    if "--hf" in sys.argv:
        ok &= hf()
    else:
        for dev in ["cuda"] if torch.cuda.is_available() else ["cpu"]:
            ok &= delta(dev, torch.float64, 128, 32, False)
            ok &= delta(dev, torch.float32, 256, 128, False)
            ok &= delta(dev, torch.float32, 256, 128, False, same=True)
            ok &= delta(dev, torch.float32, 256, 64, False, same=True)
            if dev == "cuda":
                for C in (64, 128):
                    ok &= delta(dev, torch.bfloat16, 512, C, True)
    sys.exit(0 if ok else 1)
