//! The pass itself: load a block, judge it, write what is kept.

use crate::json::grammar::BLOCK_BYTES;
use crate::json::scan::utf8;
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{State, Stop};

/// Judges `blocks` and appends what they add to the stored text to `out`.
///
/// # Safety
///
/// The CPU has the instruction set of `V`. To be inlined where it is enabled.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, const N: usize>(
    state: &mut State,
    blocks: &[[u8; BLOCK_BYTES]],
    out: &mut Vec<u8>,
) -> Result<(), Stop> {
    // A pass writes one block per block at most, the last one maybe in part only.
    out.reserve(blocks.as_flattened().len() + BLOCK_BYTES);
    let mut grammar = state.grammar;
    let mut tail = state.tail;
    // SAFETY: the caller vouches for the CPU.
    let mut before = unsafe { Block::<V, N>::load(&utf8::block_ending_in(tail)) };
    let mut length = out.len();
    let mut stop = None;
    for (index, source) in blocks.iter().enumerate() {
        // SAFETY: the caller vouches for the CPU.
        let block = unsafe { Block::<V, N>::load(source) };
        let (kept, faults) = grammar.step(block, source);
        let utf8_fault = utf8::fault(block, before);
        if utf8_fault || !faults.none() {
            let at = index * BLOCK_BYTES;
            let syntax = faults.first(source).map(|fault| Stop::grammar(fault, at));
            let utf8 = utf8_fault.then(|| Stop::Utf8(utf8::locate(tail, source) + at as isize));
            stop = first_stop(syntax, utf8);
            break;
        }
        // SAFETY: before block `index`, at most `index` blocks were written behind what `out` held
        // at first, and room for all blocks and one more was reserved.
        length += unsafe {
            let to = out.as_mut_ptr().add(length);
            V::compress(block, source, kept.keep, kept.line_feeds, to)
        };
        before = block;
        tail = utf8::tail_of(source);
    }
    // SAFETY: all bytes up to `length` were there before or were written above, within capacity.
    unsafe { out.set_len(length) };
    state.grammar = grammar;
    state.tail = tail;
    stop.map_or(Ok(()), Err)
}

/// The one of two reasons to stop that comes first. An ill-formed sequence is named as such, even
/// where no text may stand at all.
#[cold]
fn first_stop(syntax: Option<Stop>, utf8: Option<Stop>) -> Option<Stop> {
    match (syntax, utf8) {
        (Some(Stop::Syntax(at, _) | Stop::Depth(at)), Some(Stop::Utf8(bad)))
            if (at as isize) < bad =>
        {
            syntax
        }
        _ => utf8.or(syntax),
    }
}
