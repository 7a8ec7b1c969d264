#!/usr/bin/env bash
# What one GPU shows in eight minutes; each stage writes into $OUT at once, so an early stop leaves results.
# Usage, in the root of a checkout whose environment is active: OUT=folder kernels/benchmarks/gpu.sh
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
if ! python -c "import depthbench, pytest, torch" > "$OUT/python.log" 2>&1; then
    echo "$(tail -n 1 "$OUT/python.log"); activate the environment: source .venv/bin/activate" >&2
    exit 2
fi
echo "stage,status,seconds" > "$OUT/stages.csv"
ran=

# stage NAME SECONDS COMMAND...: 124 and 137 mean that its time was up; lines that it has written were measured.
stage() {
    local name=$1 limit=$2 started=$SECONDS
    shift 2
    timeout --kill-after=5 "$limit" "$@" > "$OUT/$name.log" 2>&1
    ran=$?
    echo "$name,$ran,$((SECONDS - started))" >> "$OUT/stages.csv"
}

stage ceilings 30 python -m depthbench bench kernels --only ceilings --out "$OUT/ceilings.jsonl"
# Before any speed. Without a pass, and without a test that ran, training and prefill take the path without kernels.
stage correctness 120 python -m pytest -m gpu -q -p no:cacheprovider --junitxml "$OUT/correctness.xml" ${TESTS:-tests/kernels}
kernels=auto
if [ "$ran" != 0 ] || ! grep -q "passed" "$OUT/correctness.log"; then kernels=eager; fi
echo "$kernels" > "$OUT/kernels.txt"
# What compiles longest comes last.
stage kernels 100 python -m depthbench bench kernels --rounds 7 --out "$OUT/kernels.jsonl" \
    --only "${OPERATIONS:-hc_boundary,mhc_boundary,add_norm pre,add_norm sandwich,add_norm keel,add_norm post,mixing,depth_mix}"
stage train 140 python -m depthbench bench train --study "$STUDY" "${at[@]}" --kernels "$kernels" --rounds 6 --out "$OUT/train.jsonl"
stage prefill 80 python -m depthbench bench prefill --study "$STUDY" "${at[@]}" --kernels "$kernels" --out "$OUT/prefill.jsonl"
cat "$OUT/stages.csv"
