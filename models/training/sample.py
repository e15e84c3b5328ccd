"""Unselected samples from a pack at fixed seeds.   python sample.py PACK_DIR OUT.txt [NEW_TOKENS]"""
import json
import sys

import decode
import export

PROMPTS = ["Tell me about the sea.", "Tell me a story about a small fox.", "What is the moon?", "How can I sleep better?", "Hello! Who are you?", "Why do birds sing?", "Write a short story about a lost key.",
           "What is 23 + 45?", "Give me three facts about elephants.", "I feel sad today. What should I do?", "Write a short poem about autumn.", "How do I bake bread?", "What is the difference between a cat and a dog?",
           "Anna has a red ball and Tom has a blue kite. They play in the park. What color is the ball?", "List five fruits.", "Explain gravity in simple words.", "Write a short email to my teacher to say thank you.",
           "Can you recommend a hobby?", "What makes a good friend?", "Describe a day at the beach."]


def main():
    from tokenizers import Tokenizer

    path, out = sys.argv[1], sys.argv[2]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    m = export.read_pack(path)
    tok = Tokenizer.from_file(path + "/tokenizer.json")
    g = json.load(open(path + "/generation_config.json"))
    ask = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" for q in PROMPTS]
    got = decode.generate(m, tok, ask, n, range(1, len(ask) + 1), g["temperature"], g["top_k"], g["top_p"], g.get("repetition_penalty", 1.0))
    with open(out, "w", encoding="utf-8") as f:
        f.write(f"Twenty unselected samples, one try each, seed = number, at most {n} tokens.\nTemperature {g['temperature']}, top_k {g['top_k']}, top_p {g['top_p']}, repetition penalty {g.get('repetition_penalty', 1.0)} over the generated tokens; plain PyTorch f32 (sample.py).\n")
        for i, (q, a) in enumerate(zip(PROMPTS, got)):
            f.write(f"\n--- {i + 1}\n> {q}\n{a}\n")


if __name__ == "__main__":
    main()
