#!/bin/sh
# Two replica groups on this machine: one lighthouse, one control plane, a run for each group.
set -e
trap 'kill $servers $runs 2>/dev/null || :' EXIT
trap 'exit 1' INT TERM
here=$(dirname "$0")
export TORCHFT_LIGHTHOUSE="http://127.0.0.1:${LIGHTHOUSE_PORT:=29510}"
meet="127.0.0.1:${SERVE_PORT:=29400}"

torchft_lighthouse --min_replicas 1 --bind "127.0.0.1:$LIGHTHOUSE_PORT" &
servers=$!
rallypoint serve --listen "$meet" &
servers="$servers $!"
for group in a b; do
    rallypoint run --rdzv-endpoint="$meet" --rdzv-conf=is_host=0 --rdzv-id="group-$group" --nnodes=1 --max-restarts=3 \
        --local-addr=127.0.0.1 "$here/train.py" "${STEPS:-500}" &
    runs="$runs $!"
done
wait $runs
