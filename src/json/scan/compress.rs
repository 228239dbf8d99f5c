//! Packing the kept bytes of a block, for instruction sets without an
//! instruction for that: eight bytes by each lookup in a table.

#![expect(clippy::indexing_slicing, reason = "a byte picks one of 256 entries")]

use crate::json::grammar::BLOCK_BYTES;

/// For each mask of eight bytes the indices of those it keeps, in order; the rest are 0.
pub(super) static PACKED: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut mask = 0;
    while mask < table.len() {
        let mut bit = 0;
        let mut count = 0;
        while bit < 8 {
            if mask >> bit & 1 != 0 {
                table[mask][count] = bit;
                count += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
};

/// Writes the bytes of `source` that `keep` names next to each other, as LF those that
/// `line_feeds` names, and returns how many. `pack` does it for 16 bytes: from each half those at
/// the indices given for it, eight bytes to each of two places.
///
/// # Safety
///
/// 64 bytes may be written at `to`.
#[inline(always)]
pub(super) unsafe fn by_eights(
    source: &[u8; BLOCK_BYTES],
    keep: u64,
    line_feeds: u64,
    to: *mut u8,
    pack: impl Fn(&[u8; 16], [&[u8; 8]; 2], [*mut [u8; 8]; 2]),
) -> usize {
    if keep == !0 {
        // SAFETY: the caller vouches for 64 bytes, which are not those of a live reference.
        unsafe { to.cast::<[u8; BLOCK_BYTES]>().write(*source) };
    } else {
        let (sixteens, _) = source.as_chunks::<16>();
        let mut place = to;
        let mut rest = keep;
        for sixteen in sixteens {
            let halves = [(rest & 0xFF) as usize, (rest >> 8 & 0xFF) as usize];
            rest >>= 16;
            // SAFETY: no more than 8 bytes per earlier half are before each place, so 8 more end
            // within the 64.
            let second = unsafe { place.add(halves[0].count_ones() as usize) };
            pack(
                sixteen,
                [&PACKED[halves[0]], &PACKED[halves[1]]],
                [place.cast(), second.cast()],
            );
            // SAFETY: as above; after the last sixteen this is at most the end of the 64.
            place = unsafe { second.add(halves[1].count_ones() as usize) };
        }
    }
    // SAFETY: as above; each place is below the number of kept bytes.
    unsafe { put_line_feeds(keep, line_feeds, to) };
    keep.count_ones() as usize
}

/// Overwrites the packed bytes that `line_feeds` names with LF.
///
/// # Safety
///
/// 64 bytes may be written at `to`.
#[inline(always)]
unsafe fn put_line_feeds(keep: u64, mut line_feeds: u64, to: *mut u8) {
    while line_feeds != 0 {
        let below = (line_feeds & line_feeds.wrapping_neg()) - 1;
        let place = (keep & below).count_ones() as usize;
        // SAFETY: a count of fewer than 64 bits.
        unsafe { to.add(place).write(b'\n') };
        line_feeds &= line_feeds - 1;
    }
}
