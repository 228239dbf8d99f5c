//! Memory that is free, given back to the system.

use std::hint::black_box;

use crate::base::limits::MIB;

/// Lets the allocator give back what has been free for a while. The server's looks for such memory
/// only when something larger than its size classes is freed: one that has gone idle would keep what
/// its start or a burst took, for as long as it is idle.
pub fn give_back() {
    drop(black_box(Vec::<u8>::with_capacity(MIB)));
}
