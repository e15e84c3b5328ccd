"""The exported pack in PyTorch beside the engine: largest difference of the latents after each step.

    onebit image PACK --prompt TEXT --size 128x128 --max-sequence-length 64 --activations f32 --latents-out L.safetensors -o P.png
    python parity.py PACK TEXT L.safetensors [folder of another transformer]
"""
import re
import sys

import torch

import export
import nets as N
import scenes as S
import train
import words as W


def ids_of(prompt):
    """The prompt's ids in their frame; words of the captions alone."""
    pieces = re.findall(r" ?[A-Za-z]+|[.,]", prompt)
    assert "".join(pieces) == prompt, prompt
    ids = W.START + [W.VOCAB[t] for piece in pieces for t in W.bpe(piece, W.RANKS)] + W.END
    return torch.tensor([ids + [W.PAD] * (S.TEXT - len(ids))]), torch.tensor([len(ids)])


def main():
    pack, prompt, latents = sys.argv[1:4]
    place = sys.argv[4] if len(sys.argv) > 4 else f"{pack}/transformer-packed-mflux"
    image = export.load(f"{place}/diffusion_pytorch_model.safetensors")
    bits = 32 * image["single_transformer_blocks.0.attn.to_out.weight"].shape[1] // (N.HIDDEN + N.INNER)
    w = export.restored(image, lambda name: bits) | export.restored(export.load(f"{pack}/text_encoder-mlx-4bit/model.safetensors"), lambda _: 4)
    theirs = export.load(latents)
    levels, turn = train.sigmas(4), N.angles(S.TEXT, 8, 8, "cpu")
    with torch.no_grad():
        seen = N.encode(w, *ids_of(prompt), torch.float32)
        x = theirs["latents.0"].view(1, 64, 128)
        for i, (a, b) in enumerate(zip(levels, levels[1:])):
            x = x + (b - a) * N.flow(w, x, torch.tensor([a]), seen, turn)
            print(f"step {i + 1}: latents to {x.abs().max():.3f}, apart by {(x[0] - theirs[f'latents.{i + 1}'].view(64, 128)).abs().max():.2e}")


if __name__ == "__main__":
    main()
