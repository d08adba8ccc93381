//! One node of a job in Rust: joins, meets the others at the store of the round, and
//! regroups when a node is lost.
//!
//!     cargo run --example node -- host0:29400 job7 2 3     # endpoint, run id, fewest, most
use std::time::Duration;

use rallypoint::{Member, Store};
use rallypoint_sys::RP_END_SUCCESS;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, run_id, min, max] = &args[..] else {
        return Err("usage: node ENDPOINT RUN_ID MIN MAX".into());
    };
    let member = Member::open(endpoint, run_id, min.parse()?, max.parse()?)?;
    loop {
        let place = member.next()?;
        println!(
            "round {}: rank {} of {}",
            place.round, place.rank, place.world_size
        );
        if place.world_size == 2 {
            // So that this example has something to lose a node for.
            let store =
                Store::connect(&place.store_addr, place.store_port, Duration::from_secs(30))?;
            store.barrier(b"met", place.world_size.into(), Duration::from_secs(30))?;
            break;
        }
        while member.nodes_waiting()? == 0 {
            member.wait(None)?;
        }
        println!("regrouping");
    }
    member.finish()?;
    println!("done");
    member.shutdown(RP_END_SUCCESS, "the work is done")?;
    Ok(())
}
