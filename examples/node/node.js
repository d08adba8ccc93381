// One node of a job in Node: joins, meets the others at the store of the round, and
// regroups when a node is lost.
//
//   npm install && node node.js host0:29400 job7 2 3     # endpoint, run id, fewest, most
import { END_SUCCESS, Member, Store } from "./rallypoint.js";

const [endpoint, runId, min, max] = process.argv.slice(2);
if (max === undefined) {
  console.error("usage: node node.js ENDPOINT RUN_ID MIN MAX");
  process.exit(2);
}
const member = new Member({ runId, endpoint, min: Number(min), max: Number(max) });
// The event loop goes on while the calls wait: this is what shows it.
let ticks = 0;
const ticker = setInterval(() => ticks++, 10);
for (;;) {
  const place = await member.next();
  console.log(`round ${place.round}: rank ${place.rank} of ${place.world_size}`);
  if (place.world_size === 2) { // so that this example has something to lose a node for
    const store = await Store.connect(place.store_addr, place.store_port);
    await store.barrier("met", place.world_size);
    await store.close();
    break;
  }
  while (member.nodesWaiting() === 0) await member.wait();
  console.log("regrouping");
}
await member.finish();
console.log(ticks > 0 ? "done" : "the event loop stood still");
await member.shutdown(END_SUCCESS, "the work is done");
await member.close();
clearInterval(ticker);
