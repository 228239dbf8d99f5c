//! RFC 8259 decided 64 bytes at a time, on bit masks.
//!
//! Bit `i` of every mask stands for byte `i` of the block. A rule such as "a
//! colon is followed by a value" becomes a few additions and shifts that judge
//! all 64 bytes at once, so the cost of a block depends little on what is in it
//! and branches are few. Only brackets are walked one by one, since what they
//! match is on a stack. The state carried from block to block is a few words:
//! that makes the pass resumable at any byte for free.
//!
//! How the masks cover the grammar, outside string literals:
//!
//! 1. A token that starts a value stands exactly where a value is due: behind
//!    `[ { , :` and at the start of the body, whitespace aside; a closing
//!    bracket may stand there instead if an opening one is right before it.
//! 2. Brackets match and nest no deeper than allowed ([`nesting`]), which also
//!    tells which bytes are directly inside an object.
//! 3. Behind `{` and behind a comma directly inside an object, the next token
//!    that is no string is a colon; no other colon exists.
//! 4. Commas stand inside brackets only; rules 1 to 3 make whatever else could
//!    follow a value impossible.
//!
//! Strings are judged by [`strings`], numbers and literals by [`scalars`], and
//! UTF-8 by the scanner. No arithmetic here depends on the input being well
//! formed: a block that breaks a rule gets a fault bit at the first byte that
//! shows it, and later bits of that block mean nothing.
#![forbid(unsafe_code)]

mod nesting;
mod scalars;
mod strings;

use nesting::Nesting;
use scalars::Scalars;
use strings::Strings;

/// Bytes per block: one per bit of a mask.
pub(super) const BLOCK_BYTES: usize = 64;

/// Table for [`Bytes::in_table`]: the four whitespace bytes of RFC 8259, section 2.
const WHITESPACE: [u8; 16] = [
    b' ', 0, 0, 0, 0, 0, 0, 0, 0, b'\t', b'\n', 0, 0, b'\r', 0, 0,
];

/// What the grammar asks of one block of bytes.
pub(super) trait Bytes: Copy {
    /// Bytes equal to `byte`.
    fn eq(self, byte: u8) -> u64;
    /// Bytes equal to `byte` once bit 5 is set in them (lower case, for letters).
    fn eq_folded(self, byte: u8) -> u64;
    /// Bytes below `bound`.
    fn below(self, bound: u8) -> u64;
    /// Bytes in `0` to `9`.
    fn digits(self) -> u64;
    /// Bytes with bit 5 set.
    fn bit5(self) -> u64;
    /// Bytes that equal the entry of `table` for their low four bits. Bytes from 0x80 never do.
    fn in_table(self, table: &[u8; 16]) -> u64;
    /// Bytes whose entries in `low` (for the low four bits) and `high` (for the high four) share
    /// a bit. Bytes from 0x80 never do if `high` ends in eight zeros.
    fn in_class(self, low: &[u8; 16], high: &[u8; 16]) -> u64;
    /// Bit `i` of the result is the parity of bits 0 to `i` of `bits`.
    fn prefix_xor(self, bits: u64) -> u64;
}

/// What a block adds to the stored text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Bytes that are stored.
    pub keep: u64,
    /// Those of them that are stored as LF instead.
    pub line_feeds: u64,
}

/// The bytes of a block that break a rule, by kind of rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    structure: u64,
    scalar: u64,
    string: u64,
    depth: u64,
}

/// The first fault of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A byte that cannot stand where it does.
    Syntax(u32, &'static str),
    /// A bracket that opens one level too many.
    Depth(u32),
}

impl Faults {
    const NONE: Self = Self {
        structure: 0,
        scalar: 0,
        string: 0,
        depth: 0,
    };

    /// Whether the block is free of faults.
    #[inline(always)]
    pub fn none(self) -> bool {
        (self.structure | self.scalar | self.string | self.depth) == 0
    }

    /// The fault of the lowest byte, if there is one.
    #[inline(always)]
    pub fn first(self, block: &[u8; BLOCK_BYTES]) -> Option<Fault> {
        first_of(self.structure, self.scalar, self.string, self.depth, block)
    }
}

/// The first fault of a block. Apart, and with masks by value, to leave them in registers.
#[cold]
#[inline(never)]
fn first_of(
    structure: u64,
    scalar: u64,
    string: u64,
    depth: u64,
    block: &[u8; BLOCK_BYTES],
) -> Option<Fault> {
    let any = structure | scalar | string | depth;
    let bit = any & any.wrapping_neg();
    let at = any.trailing_zeros();
    let byte = *block.get(at as usize)?;
    Some(if depth & bit != 0 {
        Fault::Depth(at)
    } else if string & bit != 0 {
        Fault::Syntax(at, strings::describe(byte))
    } else if structure & bit != 0 {
        Fault::Syntax(at, describe(byte))
    } else {
        Fault::Syntax(at, "invalid number or literal")
    })
}

/// What is wrong with a byte that breaks a rule of structure.
const fn describe(byte: u8) -> &'static str {
    match byte {
        b',' => "unexpected ','",
        b':' => "unexpected ':'",
        b'[' => "unexpected '['",
        b'{' => "unexpected '{'",
        b']' => "unexpected ']'",
        b'}' => "unexpected '}'",
        b'"' => "unexpected string",
        _ => "unexpected value",
    }
}

/// The state between two blocks of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grammar {
    strings: Strings,
    scalars: Scalars,
    nesting: Nesting,
    /// Whether the last token was an opening bracket.
    after_open: Flood,
    /// Whether the last token was a comma or colon, or there was none yet.
    after_separator: Flood,
    /// Whether only a string came since a `{`, or since a comma directly inside an object.
    colon_due: Flood,
    /// Messages of a top-level array that were ended so far.
    messages: u64,
}

impl Grammar {
    /// The state before the first block.
    pub const fn new() -> Self {
        Self {
            strings: Strings::new(),
            scalars: Scalars::new(),
            nesting: Nesting::new(),
            after_open: Flood(0),
            after_separator: Flood(1),
            colon_due: Flood(0),
            messages: 0,
        }
    }

    /// Judges the next block, given its bytes twice: in registers and in memory.
    #[inline(always)]
    pub fn step<B: Bytes>(&mut self, bytes: B, block: &[u8; BLOCK_BYTES]) -> (Kept, Faults) {
        let strings = self.strings.step(bytes);
        if strings.outside == 0 && strings.opening == 0 {
            // Within one string, or the end of one: no token starts here.
            let faults = Faults {
                string: strings.faults,
                ..Faults::NONE
            };
            let kept = Kept {
                keep: !0,
                line_feeds: 0,
            };
            return (kept, faults);
        }
        let outside = strings.outside;
        let space = bytes.in_table(&WHITESPACE) & outside;
        let opens = bytes.eq_folded(b'{') & outside;
        let closes = bytes.eq_folded(b'}') & outside;
        let commas = bytes.eq(b',') & outside;
        let colons = bytes.eq(b':') & outside;
        let structural = opens | closes | commas | colons;
        let scalar = outside & !(space | structural);

        let (scalar_starts, scalar_faults) = self.scalars.step(bytes, block, scalar);

        // Rule 1.
        let after_open = self.after_open.step(opens, space);
        let value_due = after_open | self.after_separator.step(commas | colons, space);
        let empty_closes = after_open & closes;
        let value_starts = opens | strings.opening | scalar_starts;
        let mut structure = value_due ^ (value_starts | empty_closes);

        // Rules 2 and 4.
        let nesting = self.nesting.step(bytes, opens, closes);
        let edges = &nesting.edges;
        structure |= edges.mismatched | (commas & edges.bare);

        // Rule 3. The search goes over strings and whitespace only, and by rule 1 over no more
        // than one string.
        let openers = nesting.braces | (commas & nesting.in_object);
        let colon_due = self.colon_due.step(openers, !(structural | scalar));
        structure |= colons ^ (colon_due & !empty_closes);

        let line_feeds = (commas & edges.top) | (edges.array_end & !empty_closes);
        self.messages = self
            .messages
            .wrapping_add(u64::from(line_feeds.count_ones()));
        let dropped = space | edges.array_start | (edges.array_end & empty_closes);
        let kept = Kept {
            keep: !dropped,
            line_feeds,
        };
        let faults = Faults {
            structure,
            scalar: scalar_faults,
            string: strings.faults,
            depth: edges.too_deep,
        };
        (kept, faults)
    }

    /// Where the body stands if it ends here, behind whitespace.
    pub const fn end(&self) -> End {
        if self.strings.open() || self.nesting.depth() > 0 {
            End::Inside
        } else if self.after_separator.0 != 0 {
            End::Nothing
        } else if self.nesting.is_array() {
            End::Array(self.messages)
        } else {
            End::Single
        }
    }
}

/// What a body amounts to at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A value is open.
    Inside,
    /// No value was found.
    Nothing,
    /// One value that is no array: it is a message, still without its LF.
    Single,
    /// A top-level array of so many messages, each with its LF.
    Array(u64),
}

/// Finds the first byte behind each of a set that is not of another set.
///
/// Holds whether the search from the last block goes on in the next.
#[derive(Clone, Copy, Debug)]
struct Flood(u64);

impl Flood {
    /// For each bit of `from`, the first bit above it that is not in `through`. The two sets are
    /// disjoint.
    ///
    /// The sum does it: a bit added to the bottom of a run of ones comes out above its top, and
    /// runs that nothing was added to are masked off.
    #[inline(always)]
    fn step(&mut self, from: u64, through: u64) -> u64 {
        let next = (from << 1) | self.0;
        let (sum, carry) = add(through, next);
        self.0 = (from >> 63) | carry;
        sum & !through
    }
}

/// The sum of two blocks' bits, and the 1 that is carried to the next block.
///
/// In 128 bits, which become an add and an add with carry. Written with `overflowing_add`, two such
/// sums in a row get vectorised, which takes five times as long.
#[inline(always)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "two numbers of 64 bits in 128"
)]
const fn add(a: u64, b: u64) -> (u64, u64) {
    let sum = a as u128 + b as u128;
    (sum as u64, (sum >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::Flood;

    #[test]
    fn flood_finds_the_byte_behind_a_run() {
        let mut flood = Flood(0);
        //                  from bits 0, 4, 62;   runs 1-2, 5, 63
        let through = 0b10_0110 | 1 << 63;
        assert_eq!(flood.step(1 | 1 << 4 | 1 << 62, through), 1 << 3 | 1 << 6);
        assert_eq!(flood.0, 1, "the run reaches the end of the block");
        assert_eq!(flood.step(0, !0), 0);
        assert_eq!(flood.0, 1, "a whole block of the run");
        assert_eq!(flood.step(1 << 63, 1), 1 << 1);
        assert_eq!(flood.step(0, 0), 1, "straight behind the block");
        assert_eq!(flood.step(0, 0), 0);
    }
}
