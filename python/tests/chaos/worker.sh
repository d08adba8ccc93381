#!/bin/sh
# A worker of the chaos job: writes down the round that it is in, and works until
# it has to stop. worker.sh HISTORY STOP
echo "$NODE_NAME $RALLYPOINT_ROUND $GROUP_RANK $RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $PPID" >>"$1"
while [ ! -e "$2" ]; do sleep 0.3; done
