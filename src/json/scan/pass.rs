//! The pass itself: load a block, judge it, write what is kept.

use std::mem;

use crate::json::grammar::{BLOCK_BYTES, End, Grammar};
use crate::json::scan::utf8;
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{State, Stop};

/// Judges the blocks of both parts and appends what they add to the stored text to `out`, from
/// `state` or else from the start of a body. Returns where the body stands then.
///
/// # Safety
///
/// The CPU has the instruction set of `V`. To be inlined where it is enabled.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, const N: usize>(
    state: Option<&mut State>,
    parts: [&[[u8; BLOCK_BYTES]]; 2],
    out: &mut Vec<u8>,
) -> Result<End, Stop> {
    // A pass writes one block per block at most, the last one maybe in part only.
    let [first, second] = parts.map(|part| part.as_flattened().len());
    out.reserve(first + second + BLOCK_BYTES);
    let (mut grammar, last_block) = match &state {
        Some(state) => (state.grammar, &utf8::block_ending_in(state.tail)),
        None => (Grammar::new(), &[0; BLOCK_BYTES]),
    };
    // SAFETY: the caller vouches for the CPU.
    let mut before = unsafe { Block::<V, N>::load(last_block) };
    let mut unfinished = utf8::last_bits(before.non_ascii());
    let mut length = out.len();
    let mut stop = None;
    let mut at = 0;
    // One loop over both parts: nested ones would be compiled twice, each for one part.
    let [mut sources, mut behind] = parts.map(|part| part.iter());
    loop {
        let Some(source) = sources.next() else {
            if behind.as_slice().is_empty() {
                break;
            }
            sources = mem::take(&mut behind);
            continue;
        };
        // SAFETY: the caller vouches for the CPU.
        let block = unsafe { Block::<V, N>::load(source) };
        let (kept, faults) = grammar.step(block, source);
        let non_ascii = block.non_ascii();
        let utf8_fault = (non_ascii | unfinished) != 0 && utf8::fault(block, before);
        if utf8_fault || !faults.none() {
            let syntax = faults.first(source).map(|fault| Stop::grammar(fault, at));
            let utf8 = utf8_fault.then(|| {
                let tail = state.as_ref().map_or(utf8::TAIL_NONE, |state| state.tail);
                let tail = tail_at(tail, parts, at / BLOCK_BYTES);
                Stop::Utf8(utf8::locate(tail, source) + at as isize)
            });
            stop = first_stop(syntax, utf8);
            break;
        }
        unfinished = utf8::last_bits(non_ascii);
        before = block;
        // SAFETY: no more blocks were written behind what `out` held at first than came
        // before this one, and room for all of them and one more was reserved.
        length += unsafe {
            let to = out.as_mut_ptr().add(length);
            V::compress(block, source, kept.keep, kept.line_feeds, to)
        };
        at += BLOCK_BYTES;
    }
    // SAFETY: all bytes up to `length` were there before or were written above, within capacity.
    unsafe { out.set_len(length) };
    if let Some(state) = state {
        state.grammar = grammar;
        state.tail = tail_at(state.tail, parts, usize::MAX);
    }
    match stop {
        Some(stop) => Err(stop),
        None => Ok(grammar.end()),
    }
}

/// The last bytes before block `index` of `parts`, which follow `tail`.
#[inline]
#[expect(clippy::indexing_slicing, reason = "both ends are cut to the length")]
fn tail_at(tail: utf8::Tail, parts: [&[[u8; BLOCK_BYTES]]; 2], index: usize) -> utf8::Tail {
    let [first, second] = parts;
    let before_second = index.saturating_sub(first.len()).min(second.len());
    let tail = utf8::tail_of(&first[..index.min(first.len())], tail);
    utf8::tail_of(&second[..before_second], tail)
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
