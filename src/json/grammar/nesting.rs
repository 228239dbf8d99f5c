//! Arrays and objects: RFC 8259, sections 4 and 5; depth and flattening: JSON
//! Message Text, rules 2 and 3.
//!
//! The one part that goes token by token, and only over brackets. The stack is
//! one bit per level in a machine word. From it come masks that say of every
//! byte what it is directly inside of.
#![forbid(unsafe_code)]

use super::Bytes;
use crate::base::limits::JSON_DEPTH_MAX;

/// One bit per level, the innermost in bit 0, set for an object.
type Stack = u128;

/// Levels of a body: those of a message, and one for a top-level array around it.
const LEVELS_MAX: usize = JSON_DEPTH_MAX + 1;
const _: () = assert!(LEVELS_MAX <= Stack::BITS as usize);

/// Depths at which an opening bracket touches no edge: below the top-level array and a message's
/// own level, and with room for one more level.
const INNER: std::ops::Range<u32> = 2..JSON_DEPTH_MAX as u32;

/// The state between two blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    stack: Stack,
    depth: u32,
    /// Whether the body is a top-level array.
    array: bool,
}

/// What a block holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Opening braces.
    pub braces: u64,
    /// Bytes directly inside an object; for brackets themselves this means nothing.
    pub in_object: u64,
    /// What there is to say about brackets at the edges.
    pub edges: Edges,
}

/// What a block holds near the outside of the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edges {
    /// Whether the body is a top-level array.
    array: bool,
    /// Bytes directly inside the top-level array, but for brackets.
    pub top: u64,
    /// Bytes outside of all brackets, but for brackets.
    pub bare: u64,
    /// The bracket that opens the top-level array.
    pub array_start: u64,
    /// The bracket that closes it.
    pub array_end: u64,
    /// A closing bracket that matches no opening one.
    pub mismatched: u64,
    /// An opening bracket that goes too deep.
    pub too_deep: u64,
}

impl Nesting {
    pub const fn new() -> Self {
        Self {
            stack: 0,
            depth: 0,
            array: false,
        }
    }

    /// Arrays and objects that are open.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether the body is a top-level array.
    pub const fn is_array(&self) -> bool {
        self.array
    }

    /// Walks the brackets of the next block, up to one that is at fault.
    ///
    /// Only the stack is handled here; what is special at its ends is in [`Edges`], out of the
    /// way, so that this loop runs in registers.
    #[inline(always)]
    pub fn step<B: Bytes>(&mut self, bytes: B, opens: u64, closes: u64) -> Found {
        let mut edges = Edges {
            array: self.array,
            top: splat(self.array && self.depth == 1),
            bare: splat(self.depth == 0),
            array_start: 0,
            array_end: 0,
            mismatched: 0,
            too_deep: 0,
        };
        let mut in_object = splat(self.stack & 1 != 0);
        let mut rest = opens | closes;
        if rest == 0 {
            return Found {
                braces: 0,
                in_object,
                edges,
            };
        }
        // Tells braces from square brackets.
        let curly = bytes.bit5();
        while rest != 0 {
            let bit = rest & rest.wrapping_neg();
            rest ^= bit;
            let object = curly & bit != 0;
            let outer = self.stack & 1 != 0;
            let inner;
            if opens & bit != 0 {
                if !INNER.contains(&self.depth) && !edges.open(self.depth, object, bit) {
                    break;
                }
                inner = object;
                self.stack = (self.stack << 1) | Stack::from(object);
                self.depth = self.depth.wrapping_add(1);
            } else {
                if (object != outer || self.depth <= INNER.start)
                    && !edges.close(self.depth, object == outer, bit)
                {
                    break;
                }
                self.stack >>= 1;
                inner = self.stack & 1 != 0;
                self.depth = self.depth.wrapping_sub(1);
            }
            in_object ^= from(bit) & splat(inner != outer);
        }
        self.array = edges.array;
        Found {
            braces: opens & curly,
            in_object,
            edges,
        }
    }
}

impl Edges {
    /// A bracket at `bit` opens a level above `depth`. False if it goes too deep.
    #[inline(never)]
    fn open(&mut self, depth: u32, object: bool, bit: u64) -> bool {
        if depth == 0 {
            self.bare &= !from(bit);
            if !object {
                self.array = true;
                self.top |= from(bit);
                self.array_start = bit;
            }
        }
        if depth == 1 && self.array {
            self.top &= !from(bit);
        }
        if depth >= INNER.end.saturating_add(u32::from(self.array)) {
            self.too_deep = bit;
            return false;
        }
        true
    }

    /// A bracket at `bit` closes level `depth`, which it may match. False if it does not.
    #[inline(never)]
    fn close(&mut self, depth: u32, matches: bool, bit: u64) -> bool {
        if depth == 0 || !matches {
            self.mismatched = bit;
            return false;
        }
        if depth == 1 {
            self.bare |= from(bit);
            if self.array {
                self.top &= !from(bit);
                self.array_end = bit;
            }
        }
        if depth == 2 && self.array {
            self.top |= from(bit);
        }
        true
    }
}

/// All ones for true.
#[inline(always)]
const fn splat(bit: bool) -> u64 {
    0_u64.wrapping_sub(bit as u64)
}

/// `bit` and all bits above it.
#[inline(always)]
const fn from(bit: u64) -> u64 {
    bit.wrapping_neg()
}
