#!/bin/sh
# azure-events.sh ENDPOINT RUN NODE: drains a machine that is going to be preempted or redeployed.
set -eu
url='http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'
until curl -sf -H Metadata:true "$url" | grep -qE '"EventType": *"(Preempt|Terminate|Redeploy)"'; do
    sleep 5
done
exec rallypoint admin drain "$1" --rdzv-id "$2" --node "$3" --within 25s --reason "scheduled event"
