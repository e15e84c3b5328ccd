"""The three networks, by the formulas that the engine runs: Qwen3 (text encoder), FLUX.2's transformer and VAE.

Encoder and transformer are functions of a dictionary of weights, so that rounded weights are made once a step and serve every
forward pass of it. Names are those of the pack.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import words

# --- text encoder --------------------------------------------------------------------------------------------------------------
LAYERS, TAPS = 27, (9, 18, 27)
T_HIDDEN, T_HEADS, T_KV, T_DIM, T_INNER, T_THETA, T_EPS = 64, 2, 1, 32, 128, 1_000_000.0, 1e-6


def encoder_shapes():
    shapes = {"model.embed_tokens.weight": (words.SIZE, T_HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (T_HIDDEN,), p + "post_attention_layernorm.weight": (T_HIDDEN,),
            p + "self_attn.q_norm.weight": (T_DIM,), p + "self_attn.k_norm.weight": (T_DIM,),
            p + "self_attn.q_proj.weight": (T_HEADS * T_DIM, T_HIDDEN), p + "self_attn.k_proj.weight": (T_KV * T_DIM, T_HIDDEN),
            p + "self_attn.v_proj.weight": (T_KV * T_DIM, T_HIDDEN), p + "self_attn.o_proj.weight": (T_HIDDEN, T_HEADS * T_DIM),
            p + "mlp.gate_proj.weight": (T_INNER, T_HIDDEN), p + "mlp.up_proj.weight": (T_INNER, T_HIDDEN),
            p + "mlp.down_proj.weight": (T_HIDDEN, T_INNER),
        }
    return shapes | {"model.norm.weight": (T_HIDDEN,)}


def rms(x, gain, eps=1e-6):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * gain.float()).to(x.dtype)


def half_turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def encoder_layer(x, mask, cos, sin, n1, n2, qn, kn, q, k, v, o, gate, up, down):
    b, t, _ = x.shape
    h = rms(x, n1)
    heads = lambda y, n: y.view(b, t, n, T_DIM).transpose(1, 2)
    qs = half_turn(rms(heads(F.linear(h, q), T_HEADS), qn), cos, sin)
    ks = half_turn(rms(heads(F.linear(h, k), T_KV), kn), cos, sin).expand(-1, T_HEADS, -1, -1)
    vs = heads(F.linear(h, v), T_KV).expand(-1, T_HEADS, -1, -1)
    mixed = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=mask)
    x = x + F.linear(mixed.transpose(1, 2).reshape(b, t, -1), o)
    h = rms(x, n2)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def turns(t, device):
    inv = T_THETA ** (-torch.arange(0, T_DIM, 2, device=device).double() / T_DIM)
    angle = torch.arange(t, device=device).double()[:, None] * inv
    return angle.cos().float(), angle.sin().float()


def encode(w, ids, many, dtype, layer=encoder_layer):
    """ids [b, t] of which the first `many` are the prompt -> [b, t, 3 hidden]."""
    t, dev = ids.shape[1], ids.device
    at = torch.arange(t, device=dev)
    mask = ((at[None, :] <= at[:, None])[None] & (at[None, None] < many[:, None, None]))[:, None]
    cos, sin = (c.to(dtype) for c in turns(t, dev))
    x = F.embedding(ids, w["model.embed_tokens.weight"]).to(dtype)
    seen = []
    leaves = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "self_attn.q_proj",
              "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    for i in range(LAYERS):
        x = layer(x, mask, cos, sin, *(w[f"model.layers.{i}.{leaf}.weight"] for leaf in leaves))
        if i + 1 in TAPS:
            seen.append(x)
    return torch.cat(seen, -1)


# --- transformer ---------------------------------------------------------------------------------------------------------------
HEADS, DIM, DOUBLE, SINGLE, CHANNELS, TIME, RATIO = 4, 64, 2, 6, 128, 256, 3
AXES, THETA = (16, 16, 16, 16), 2000.0
HIDDEN, INNER = HEADS * DIM, HEADS * DIM * RATIO


def transformer_shapes():
    n = HIDDEN
    shapes = {
        "x_embedder.weight": (n, CHANNELS), "context_embedder.weight": (n, 3 * T_HIDDEN),
        "time_guidance_embed.timestep_embedder.linear_1.weight": (n, TIME), "time_guidance_embed.timestep_embedder.linear_2.weight": (n, n),
        "double_stream_modulation_img.linear.weight": (6 * n, n), "double_stream_modulation_txt.linear.weight": (6 * n, n),
        "single_stream_modulation.linear.weight": (3 * n, n), "norm_out.linear.weight": (2 * n, n), "proj_out.weight": (CHANNELS, n),
    }
    for i in range(DOUBLE):
        p = f"transformer_blocks.{i}."
        for leaf in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            shapes[f"{p}attn.{leaf}.weight"] = (n, n)
        for leaf in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes[f"{p}attn.{leaf}.weight"] = (DIM,)
        for ff in ("ff", "ff_context"):
            shapes[f"{p}{ff}.linear_in.weight"] = (2 * INNER, n)
            shapes[f"{p}{ff}.linear_out.weight"] = (n, INNER)
    for i in range(SINGLE):
        p = f"single_transformer_blocks.{i}.attn."
        shapes |= {p + "to_qkv_mlp_proj.weight": (3 * n + 2 * INNER, n), p + "to_out.weight": (n, n + INNER), p + "norm_q.weight": (DIM,),
                   p + "norm_k.weight": (DIM,)}
    return shapes


DENSE = ("x_embedder", "context_embedder", "proj_out", "norm_out", "time_guidance_embed")


def transformer_bits(name, bits):
    """How a matrix of the transformer is stored: its blocks and modulations packed, its ends not."""
    return 16 if name.startswith(DENSE) or "norm_" in name else bits


def angles(text, rows, columns, device):
    """cos, sin [text + rows * columns, DIM / 2], pairs of neighbours turned by the position on their axis."""
    position = torch.zeros(text + rows * columns, 4, dtype=torch.double)
    position[:text, 3] = torch.arange(text)
    position[text:, 1] = torch.arange(rows).repeat_interleave(columns)
    position[text:, 2] = torch.arange(columns).repeat(rows)
    parts = [position[:, a : a + 1] * THETA ** (-torch.arange(0, n, 2).double() / n) for a, n in enumerate(AXES)]
    angle = torch.cat(parts, 1).to(device)
    return angle.cos().float(), angle.sin().float()


def pair_turn(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def modulate(x, shift, scale):
    y = F.layer_norm(x.float(), x.shape[-1:], eps=1e-6)
    return (y * (1 + scale.float()) + shift.float()).to(x.dtype)


def heads_of(x):
    return x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


def attend(q, k, v, cos, sin):
    y = F.scaled_dot_product_attention(pair_turn(q, cos, sin), pair_turn(k, cos, sin), v)
    return y.transpose(1, 2).flatten(2)


def swiglu(x, inner):
    a, b = F.linear(x, inner).chunk(2, -1)
    return F.silu(a) * b


def double_block(x, c, mi, mt, cos, sin, q, k, v, o, aq, ak, av, ao, nq, nk, naq, nak, fi, fo, ci, co):
    """x image rows, c text rows; mi and mt their six modulations."""
    t = c.shape[1]
    hx, hc = modulate(x, mi[0], mi[1]), modulate(c, mt[0], mt[1])
    both = lambda wc, wx, nc, nx: torch.cat([rms(heads_of(F.linear(hc, wc)), nc), rms(heads_of(F.linear(hx, wx)), nx)], 2)
    vs = torch.cat([heads_of(F.linear(hc, av)), heads_of(F.linear(hx, v))], 2)
    mixed = attend(both(aq, q, naq, nq), both(ak, k, nak, nk), vs, cos, sin)
    x = x + mi[2] * F.linear(mixed[:, t:], o)
    c = c + mt[2] * F.linear(mixed[:, :t], ao)
    x = x + mi[5] * F.linear(swiglu(modulate(x, mi[3], mi[4]), fi), fo)
    c = c + mt[5] * F.linear(swiglu(modulate(c, mt[3], mt[4]), ci), co)
    return x, c


def single_block(z, m, cos, sin, fused, out, nq, nk):
    y = F.linear(modulate(z, m[0], m[1]), fused)
    q, k, v, a, b = y.split([HIDDEN] * 3 + [INNER] * 2, -1)
    mixed = attend(rms(heads_of(q), nq), rms(heads_of(k), nk), heads_of(v), cos, sin)
    return z + m[2] * F.linear(torch.cat([mixed, F.silu(a) * b], -1), out)


def flow(w, x, sigma, prompt, turn, blocks=(double_block, single_block)):
    """x [b, pixels, CHANNELS], sigma [b], prompt [b, text, 3 T_HIDDEN] -> the flow, as x. All in the type of `prompt`."""
    dtype, half = prompt.dtype, TIME // 2
    cos, sin = turn
    freq = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / half))
    angle = (sigma.float() * 1000)[:, None] * freq
    time = torch.cat([angle.cos(), angle.sin()], 1).to(dtype)
    p = "time_guidance_embed.timestep_embedder.linear_"
    active = F.silu(F.linear(F.silu(F.linear(time, w[p + "1.weight"])), w[p + "2.weight"]))
    parts = lambda name, n: F.linear(active, w[name])[:, None].chunk(n, -1)
    mi, mt = (parts(f"double_stream_modulation_{s}.linear.weight", 6) for s in ("img", "txt"))
    ms = parts("single_stream_modulation.linear.weight", 3)
    scale, shift = parts("norm_out.linear.weight", 2)
    h, c = F.linear(x.to(dtype), w["x_embedder.weight"]), F.linear(prompt, w["context_embedder.weight"])
    double, single = blocks
    for i in range(DOUBLE):
        a, b = f"transformer_blocks.{i}.attn.", f"transformer_blocks.{i}."
        attn = [w[f"{a}{leaf}.weight"] for leaf in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj",
                                                     "to_add_out", "norm_q", "norm_k", "norm_added_q", "norm_added_k")]
        ff = [w[f"{b}{leaf}.weight"] for leaf in ("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out")]
        h, c = double(h, c, mi, mt, cos, sin, *attn, *ff)
    z = torch.cat([c, h], 1)
    for i in range(SINGLE):
        a = f"single_transformer_blocks.{i}.attn."
        z = single(z, ms, cos, sin, *(w[f"{a}{leaf}.weight"] for leaf in ("to_qkv_mlp_proj", "to_out", "norm_q", "norm_k")))
    return F.linear(modulate(z[:, prompt.shape[1] :], shift, scale), w["proj_out.weight"])


def init(shapes, device, g):
    """Latent weights: gains at one; modulations small, so that every block starts as almost nothing."""
    out = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            x = torch.ones(shape)
        else:
            std = shape[1] ** -0.5
            if "modulation" in name or name.startswith(("proj_out", "norm_out")):
                std = 0.01
            elif name.startswith("model.embed"):
                std = 0.5
            elif name.startswith("model") and ("o_proj" in name or "down_proj" in name):
                std *= 0.2
            x = torch.randn(shape, generator=g) * std
        out[name] = x.to(device).requires_grad_()
    return out


# --- VAE -----------------------------------------------------------------------------------------------------------------------
LATENT, GROUPS = 32, 8
WIDTHS = (64, 64, 48, 32)  # of the decoder's up blocks
RESNETS = 2


class Norm(nn.GroupNorm):
    """In the type of its input: autocast would widen whole pictures."""

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def group_norm(channels):
    return Norm(GROUPS, channels, eps=1e-6)


class Resnet(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = group_norm(a), nn.Conv2d(a, b, 3, padding=1)
        self.norm2, self.conv2 = group_norm(b), nn.Conv2d(b, b, 3, padding=1)
        if a != b:
            self.conv_shortcut = nn.Conv2d(a, b, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x) + h


class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.group_norm = group_norm(n)
        self.to_q, self.to_k, self.to_v, self.to_out = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, n), nn.ModuleList([nn.Linear(n, n)])

    def forward(self, x):
        y = self.group_norm(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(*(f(y)[:, None] for f in (self.to_q, self.to_k, self.to_v)))[:, 0]
        return x + self.to_out[0](y).transpose(1, 2).view_as(x)


class Up(nn.Module):
    def __init__(self, a, b, grow):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(a if i == 0 else b, b) for i in range(RESNETS)])
        if grow:
            up = nn.Module()
            up.conv = nn.Conv2d(b, b, 3, padding=1)
            self.upsamplers = nn.ModuleList([up])

    def forward(self, x):
        for r in self.resnets:
            x = r(x)
        if hasattr(self, "upsamplers"):
            x = self.upsamplers[0].conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        first = WIDTHS[0]
        self.conv_in = nn.Conv2d(LATENT, first, 3, padding=1)
        self.mid_block = nn.Module()
        self.mid_block.resnets = nn.ModuleList([Resnet(first, first), Resnet(first, first)])
        self.mid_block.attentions = nn.ModuleList([Attention(first)])
        ins = (first,) + WIDTHS[:-1]
        self.up_blocks = nn.ModuleList([Up(a, b, i < 3) for i, (a, b) in enumerate(zip(ins, WIDTHS))])
        self.conv_norm_out, self.conv_out = group_norm(WIDTHS[-1]), nn.Conv2d(WIDTHS[-1], 3, 3, padding=1)

    def forward(self, z):
        x = self.conv_in(z)
        x = self.mid_block.resnets[0](x)
        x = self.mid_block.resnets[1](self.mid_block.attentions[0](x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


def fold(z):
    """[n, 32, 2h, 2w] -> [n, 128, h, w], channel 4 c + 2 dy + dx."""
    return F.pixel_unshuffle(z, 2)


class Vae(nn.Module):
    """The part that is shipped is `post_quant_conv`, `decoder` and the statistics `bn`."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(4), nn.Conv2d(48, 128, 3, padding=1), Resnet(128, 128), nn.Conv2d(128, 192, 3, stride=2, padding=1),
            Resnet(192, 192), Resnet(192, 192), group_norm(192), nn.SiLU(), nn.Conv2d(192, LATENT, 3, padding=1))
        self.bn = nn.BatchNorm2d(4 * LATENT, eps=1e-4, momentum=0.02, affine=False)
        self.post_quant_conv = nn.Conv2d(LATENT, LATENT, 1)
        self.decoder = Decoder()

    def latents(self, pictures):
        """Normed latents, [n, tokens, 128]; in training by the statistics of the batch."""
        return self.bn(fold(self.encoder(pictures)).float()).flatten(2).transpose(1, 2)

    def pictures(self, latents, rows=8, columns=8):
        z = latents.transpose(1, 2).unflatten(2, (rows, columns))
        mean, var = self.bn.running_mean, self.bn.running_var
        z = z * (var + 1e-4).sqrt()[None, :, None, None] + mean[None, :, None, None]
        z = F.pixel_shuffle(z, 2)
        return self.decoder(self.post_quant_conv(z.to(self.post_quant_conv.weight.dtype)))
