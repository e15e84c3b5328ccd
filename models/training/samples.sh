#!/bin/bash
# Twenty unselected samples of a pack, made by the engine at fixed seeds: question i with seed i.   ./samples.sh ONEBIT PACK > OUT.txt
echo "Twenty unselected samples, one try each, seed = number, at most 150 tokens: onebit run PACK QUESTION --seed N -n 150"
echo "with the pack's own settings (temperature 0.6, top-k 20, top-p 0.9, repetition penalty 1.1). None of these questions' topics is in facts.py."
python3 -c "
import ast
t = ast.parse(open('$(dirname $0)/sample.py').read())
for n in t.body:
    if isinstance(n, ast.Assign) and n.targets[0].id == 'PROMPTS':
        print('\n'.join(ast.literal_eval(n.value)))
" | { i=0; while IFS= read -r q; do i=$((i + 1)); printf '\n--- %s\n> %s\n' $i "$q"; "$1" run -q -n 150 --seed $i "$2" "$q" < /dev/null; done; }
