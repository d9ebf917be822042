#!/bin/sh
# What a head start is worth with 200 and with 1,000 labels, five seeds each: the demo's data, more of everything. About twenty minutes on two CPU cores.
set -e
out=${1:-headstart-demo}
headstart demo --out "$out"
headstart compare "$out/data/train.jsonl" --valid "$out/data/valid.jsonl" --test "$out/data/test.jsonl" \
  --from starter:en-reviews --arms linear,scratch,pretrained --labels 200,1000 --seeds 5 --loop.min-steps 50 --optim.ema-decay 0.9 \
  --out "$out/more-labels"
