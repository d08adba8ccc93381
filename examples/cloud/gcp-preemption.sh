#!/bin/sh
# gcp-preemption.sh ENDPOINT RUN NODE: drains a preemptible machine, which has 30 seconds.
set -eu
url=http://metadata.google.internal/computeMetadata/v1/instance/preempted
until [ "$(curl -sf -H 'Metadata-Flavor: Google' "$url?wait_for_change=true&timeout_sec=300")" = TRUE ]; do
    sleep 1
done
exec rallypoint admin drain "$1" --rdzv-id "$2" --node "$3" --within 20s --reason "preemption"
