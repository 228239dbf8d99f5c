//! Everything at once: writers at a rate or at full speed, readers catching up, subscribers and pollers following.
//!
//! Only writers take part in `--rate`; catch-up readers run in a closed loop and live readers follow.

use std::sync::Arc;

use super::{Role, World, append, long_poll, read, tail};
use crate::args::RunArgs;

/// The slots of the mixed workload.
pub fn roles(world: &Arc<World>, connections: u32, args: &RunArgs) -> Vec<Role> {
    let mut roles = append::roles(world, connections, args);
    roles.extend(
        read::roles(world, args.readers)
            .into_iter()
            .map(|role| Role {
                paced: false,
                ..role
            }),
    );
    roles.extend(tail::roles(world, args.subscribers));
    roles.extend(long_poll::roles(world, args.pollers));
    roles
}
