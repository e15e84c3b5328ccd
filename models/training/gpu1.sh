#!/bin/bash
# First minutes on a GPU machine: correctness checks, procedural documents, speed of a few shapes.
W=${WORK:-/tmp/w}; mkdir -p $W/d0 $W/d $W/o $W/tok
nvidia-smi -L; nproc
cp -r .carry/A/tok/* $W/tok/; cp .carry/A/w.a $W/
python3 proc_docs.py $W/tok $W/d0/proc.pt 300000 7 40 & PP=$!
CUDA_VISIBLE_DEVICES=0 timeout 150 python3 check_model.py > $W/check.log 2>&1 & C=$!
wait $PP; ls -la $W/d0
run() { CUDA_VISIBLE_DEVICES=$1 timeout 170 python3 train.py --data $W/d0 --out $W/o --steps 200 --eval-every 0 --save-every 0 --tag speed$1 "${@:2}" > $W/speed$1.log 2>&1; }
run 1 --rows 32 --profile & P1=$!
run 2 --rows 16 --opt muon & P2=$!
run 3 --rows 32 --config '{"chunk":64}' & P3=$!
wait $C; cat $W/check.log
wait $P1 $P2 $P3
cp $W/*.log $OUT/ 2>/dev/null
for i in 2 3 1; do echo "== speed$i"; tail -c 2500 $W/speed$i.log; done
