//! Arrays and objects: RFC 8259, sections 4 and 5; depth and flattening: JSON
//! Message Text, rules 2 and 3.
//!
//! The one part that goes token by token, and only over brackets. The stack is
//! one bit per level in a machine word. From it come masks that say of every
//! byte what it is directly inside of.
#![forbid(unsafe_code)]

use crate::base::limits::JSON_DEPTH_MAX;

/// One bit per level, the innermost in bit 0, set for an object.
type Stack = u128;

/// Levels of a body: those of a message, and one for a top-level array around it.
const LEVELS_MAX: usize = JSON_DEPTH_MAX + 1;
const _: () = assert!(LEVELS_MAX <= Stack::BITS as usize);

/// The state between two blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    stack: Stack,
    depth: u32,
    /// Depth at which commas end messages: 1 in a top-level array, else one that is never met.
    top_depth: u32,
}

/// `top_depth` of a body that is no array.
const NO_ARRAY: u32 = u32::MAX;

/// What a block holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Bytes directly inside an object.
    pub in_object: u64,
    /// Bytes directly inside the top-level array.
    pub top: u64,
    /// Bytes outside of all brackets.
    pub bare: u64,
    /// The bracket that opens the top-level array.
    pub array_start: u64,
    /// The bracket that closes it.
    pub array_end: u64,
    /// Closing brackets that match no opening one.
    pub mismatched: u64,
    /// An opening bracket that goes too deep.
    pub too_deep: u64,
}

impl Nesting {
    pub const fn new() -> Self {
        Self {
            stack: 0,
            depth: 0,
            top_depth: NO_ARRAY,
        }
    }

    /// Arrays and objects that are open.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether the body is a top-level array.
    pub const fn is_array(&self) -> bool {
        self.top_depth != NO_ARRAY
    }

    /// Walks the brackets of the next block. `curly` tells braces from square brackets.
    #[inline(always)]
    pub fn step(&mut self, opens: u64, closes: u64, curly: u64) -> Found {
        let mut found = Found {
            in_object: splat(self.stack & 1 != 0),
            top: splat(self.depth == self.top_depth),
            bare: splat(self.depth == 0),
            array_start: 0,
            array_end: 0,
            mismatched: 0,
            too_deep: 0,
        };
        let mut rest = opens | closes;
        while rest != 0 {
            let bit = rest & rest.wrapping_neg();
            rest ^= bit;
            let above = bit.wrapping_neg() << 1;
            let object = curly & bit != 0;
            if opens & bit != 0 {
                if self.depth == 0 {
                    found.bare &= !above;
                    if !object {
                        self.top_depth = 1;
                        found.array_start |= bit;
                    }
                }
                if self.depth >= self.depth_max() {
                    found.too_deep = bit;
                    break;
                }
                self.depth += 1;
                self.stack = (self.stack << 1) | Stack::from(object);
            } else {
                if self.depth == 0 {
                    found.mismatched |= bit;
                    break;
                }
                if (self.stack & 1 != 0) != object {
                    found.mismatched |= bit;
                }
                self.stack >>= 1;
                self.depth -= 1;
                if self.depth == 0 {
                    found.bare |= above;
                    if self.is_array() {
                        found.array_end |= bit;
                    }
                }
            }
            found.in_object = select(found.in_object, self.stack & 1 != 0, above);
            found.top = select(found.top, self.depth == self.top_depth, above);
        }
        found
    }

    #[inline(always)]
    fn depth_max(&self) -> u32 {
        // At most 128, so nothing is cut off.
        (JSON_DEPTH_MAX + usize::from(self.is_array())) as u32
    }
}

/// All ones for true.
#[inline(always)]
const fn splat(bit: bool) -> u64 {
    0_u64.wrapping_sub(bit as u64)
}

/// `mask` with `bit` in all places of `at`.
#[inline(always)]
const fn select(mask: u64, bit: bool, at: u64) -> u64 {
    (mask & !at) | (splat(bit) & at)
}
