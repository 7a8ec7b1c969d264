#!/usr/bin/env bash
# What one GPU shows in eight minutes; each stage writes into $OUT at once, so an early stop leaves results.
# Usage, in the root of a checkout: OUT=folder kernels/benchmarks/gpu.sh
# STUDY and SHAPES choose what is trained and prefilled: default the paper's shapes (24, 1024) and (70, 640).
set -u
: "${OUT:?name the folder of the results}"
STUDY=${STUDY:-paper}
read -ra shapes <<< "${SHAPES:-24,1024 70,640}"
at=("${shapes[@]/#/--shape=}")
mkdir -p "$OUT"
if [ -n "$(ls -A "$OUT")" ]; then
    echo "$OUT holds files already; name an empty folder" >&2
    exit 2
fi
echo "stage,status,seconds" > "$OUT/stages.csv"
ran=

# stage NAME SECONDS FILE COMMAND...: time is up (124): what is there counts; any other failure: FILE does not.
stage() {
    local name=$1 limit=$2 file=$OUT/$3 started=$SECONDS
    shift 3
    timeout --kill-after=5 "$limit" "$@" > "$OUT/$name.log" 2>&1
    ran=$?
    echo "$name,$ran,$((SECONDS - started))" >> "$OUT/stages.csv"
    if [ "$ran" != 0 ] && [ "$ran" != 124 ] && [ -e "$file" ]; then
        mv "$file" "$file.failed"
    fi
}

stage ceilings 30 ceilings.jsonl python -m depthbench bench kernels --only ceilings --out "$OUT/ceilings.jsonl"
# Before any speed. Without a pass, and without a test that ran, training and prefill take the path without kernels.
stage correctness 60 correctness.xml python -m pytest -m gpu -q -p no:cacheprovider --junitxml "$OUT/correctness.xml" ${TESTS:-tests/kernels}
kernels=auto
if [ "$ran" != 0 ] || ! grep -q "passed" "$OUT/correctness.log"; then kernels=eager; fi
echo "$kernels" > "$OUT/kernels.txt"
stage kernels 100 kernels.jsonl python -m depthbench bench kernels --rounds 7 --out "$OUT/kernels.jsonl" \
    --only "${OPERATIONS:-mixing,hc_boundary,mhc_boundary,add_norm pre,add_norm sandwich,add_norm keel,add_norm post,depth_mix}"
stage train 180 train.jsonl python -m depthbench bench train --study "$STUDY" "${at[@]}" --kernels "$kernels" --rounds 6 --out "$OUT/train.jsonl"
stage prefill 90 prefill.jsonl python -m depthbench bench prefill --study "$STUDY" "${at[@]}" --kernels "$kernels" --out "$OUT/prefill.jsonl"
cat "$OUT/stages.csv"
