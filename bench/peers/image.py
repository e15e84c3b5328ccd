#!/usr/bin/env python3
"""A picture by diffusers' Flux2KleinPipeline and by onebit, from the same pack and the same noise, on the same CPU.

    python3 bench/peers/image.py ONEBIT [PACK] [--size 128x128] [--steps 4] [--repeat 3] [--json]

PACK is a folder laid out as the published packs; without one it is models/sprout. diffusers gets the dequantised weights in float32;
onebit runs the pack as it is, in float32 (the comparison) and as it comes (the time). Printed are the largest distance of the
latents after each step by their standard deviation, how many levels the pictures differ, and the median seconds of a picture with
everything loaded. Needs torch, diffusers, transformers and safetensors from PyPI.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
from PIL import Image
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[2]

# What Qwen3's template makes of one message, for packs whose tokenizer brings none.
FRAME = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
)


def dequantised(folder, file, quantization):
    """Tensors in float32; codes of `bits` bits in 32-bit words, the first in the lowest, times scale plus bias."""
    tensors = load_file(folder / file)
    out = {}
    for name, value in tensors.items():
        base = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if base + ".scales" not in tensors or base == name:
            out[name] = value if value.dtype == torch.int64 else value.float()
            continue
        bits, group = quantization["bits"], quantization["group_size"]
        words = torch.from_numpy(value.view(torch.int32).numpy().view(np.uint32).astype(np.int64))
        codes = torch.stack([words >> bits * i & (1 << bits) - 1 for i in range(32 // bits)], -1).reshape(len(words), -1)
        scales, biases = [tensors[f"{base}.{kind}"].float().repeat_interleave(group, 1) for kind in ("scales", "biases")]
        out[name] = codes * scales + biases
    return out


def config(folder, file="config.json"):
    return {k: v for k, v in json.loads((folder / file).read_text()).items() if not k.startswith("_")}


def pipeline(pack):
    folder = pack / "text_encoder-mlx-4bit"
    text = config(folder)
    weights = dequantised(folder, "model.safetensors", text["quantization"])
    rope = {"rope_type": "default", "rope_theta": float(text["rope_theta"])}
    kept = {k: v for k, v in text.items() if k not in ("quantization", "quantization_config", "dtype", "rope_scaling", "rope_theta")}
    # The stream behind layer 27 is read; behind the last layer transformers would norm it. Packs may end there: one more layer, of any
    # weights, keeps it as it is.
    kept["num_hidden_layers"] = max(kept["num_hidden_layers"], 28)
    made = Qwen3Config(**kept, rope_parameters=rope)
    made._attn_implementation = "eager"
    encoder = Qwen3ForCausalLM(made).float().eval()
    encoder.load_state_dict(weights, strict=False)
    encoder.tie_weights()

    folder = pack / "transformer-packed-mflux"
    transformer = Flux2Transformer2DModel(**config(folder)).float().eval()
    quantization = config(folder, "quantization_config.json")
    transformer.load_state_dict(dequantised(folder, "diffusion_pytorch_model.safetensors", quantization))

    folder = pack / "vae"
    vae = AutoencoderKLFlux2(**{k: v for k, v in config(folder).items() if k != "force_upcast"}).float().eval()
    missing, unknown = vae.load_state_dict(dequantised(folder, "diffusion_pytorch_model.safetensors", {}), strict=False)
    encoding = ("encoder", "quant_conv", "bn.num")
    assert not unknown and all(name.startswith(encoding) for name in missing), (missing, unknown)

    words = pack / "tokenizer"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(words / "tokenizer.json"), pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="right"
    )
    beside = words / "tokenizer_config.json"
    tokenizer.chat_template = (json.loads(beside.read_text()) if beside.exists() else {}).get("chat_template", FRAME)
    scheduler = FlowMatchEulerDiscreteScheduler(**config(pack / "scheduler", "scheduler_config.json"))
    made = Flux2KleinPipeline(
        scheduler=scheduler, vae=vae, text_encoder=encoder, tokenizer=tokenizer, transformer=transformer, is_distilled=True
    )
    made.set_progress_bar_config(disable=True)
    return made


def onebit(args, folder, activations, extra=()):
    """One picture; its report."""
    command = [args.onebit, "image", "-m", str(args.pack), "--backend", "cpu", "--prompt", args.prompt, "--size", args.size]
    command += ["--steps", str(args.steps), "--seed", "7", "--threads", str(args.threads), "--json", "--force"]
    command += ["-o", str(folder / "onebit.png"), *extra]
    if activations:
        command += ["--activations", activations]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def seconds(report):
    return sum(part["run_s"] for part in report["pictures"][0]["parts"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("onebit")
    parser.add_argument("pack", nargs="?", type=Path, default=ROOT / "models" / "sprout")
    parser.add_argument("--prompt", default="a red circle above a blue square")
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    width, height = map(int, args.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = onebit(args, folder, "f32", ["--latents-out", str(folder / "latents.safetensors")])
        latents = load_file(folder / "latents.safetensors")
        ours = np.asarray(Image.open(folder / "onebit.png")).astype(int)
        noise = latents["latents.0"].float().T.reshape(1, -1, height // 16, width // 16)
        pipe, after = pipeline(args.pack), []

        def picture():
            after.clear()
            with torch.no_grad():
                return pipe(
                    prompt=args.prompt, height=height, width=width, num_inference_steps=args.steps, guidance_scale=1.0,
                    latents=noise.clone(), max_sequence_length=first["max_sequence_length"], output_type="pt",
                    callback_on_step_end=lambda _, i, t, kept: (after.append(kept["latents"][0].clone()), kept)[1],
                    callback_on_step_end_tensor_inputs=["latents"],
                ).images[0]

        theirs = (picture().permute(1, 2, 0).clamp(0, 1) * 255).round().numpy().astype(int)
        off = [float((latents[f"latents.{i + 1}"] - l).abs().max() / l.std()) for i, l in enumerate(after)]
        times = {"diffusers": [], "onebit f32": [], "onebit": []}
        for _ in range(args.repeat):
            since = time.perf_counter()
            picture()
            times["diffusers"].append(time.perf_counter() - since)
            times["onebit f32"].append(seconds(onebit(args, folder, "f32")))
            report = onebit(args, folder, None)
            times["onebit"].append(seconds(report))
    levels = np.abs(ours - theirs)
    result = {
        "pack": args.pack.name, "size": args.size, "steps": args.steps, "threads": args.threads, "device": report["device"],
        "text_rows": first["max_sequence_length"], "activations": report["activations"], "torch": torch.__version__,
        "latents_off_by_deviation": off, "levels_off": int(levels.max()), "pixels_off": float((levels > 0).mean()),
        "seconds": {name: {"median": median(all_), "all": all_} for name, all_ in times.items()},
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['pack']}, {args.size}, {args.steps} steps, {args.threads} threads, torch {torch.__version__}")
    print("latents off by so many standard deviations at most: " + ", ".join(f"{o:.1e}" for o in off))
    print(f"pictures differ by {result['levels_off']} levels at most, in {result['pixels_off']:.2%} of the values")
    for name, all_ in times.items():
        print(f"{name:<12}{median(all_):>8.3f} s a picture ({min(all_):.3f} to {max(all_):.3f})")


main()
