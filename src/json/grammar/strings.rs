//! Strings: RFC 8259, section 7.
//!
//! Finds which bytes are inside string literals, and there refuses control
//! characters and malformed escapes. `\u` takes any four hexadecimal digits: an
//! escape of a lone surrogate is valid (JSON Message Text, rule 1).
#![forbid(unsafe_code)]

use super::Bytes;

/// Every second bit.
const ODD_BITS: u64 = 0xAAAA_AAAA_AAAA_AAAA;

/// Classes of bytes that may follow a backslash (`" / \ b f n r t u`): one bit per high four bits.
const ESCAPED_LOW: [u8; 16] = {
    let mut low = [0; 16];
    low[0x2] = 0x1 | 0x4 | 0x8; // 22 '"', 62 'b', 72 'r'
    low[0xF] = 0x1; // 2F '/'
    low[0xC] = 0x2; // 5C '\'
    low[0x6] = 0x4; // 66 'f'
    low[0xE] = 0x4; // 6E 'n'
    low[0x4] = 0x8; // 74 't'
    low[0x5] = 0x8; // 75 'u'
    low
};
const ESCAPED_HIGH: [u8; 16] = [0, 0, 0x1, 0, 0, 0x2, 0x4, 0x8, 0, 0, 0, 0, 0, 0, 0, 0];

/// Classes of hexadecimal digits: bit 0 for `0` to `9`, bit 1 for letters of either case.
const HEX_LOW: [u8; 16] = [1, 3, 3, 3, 3, 3, 3, 1, 1, 1, 0, 0, 0, 0, 0, 0];
const HEX_HIGH: [u8; 16] = [0, 0, 0, 1, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The state between two blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strings {
    /// All ones inside a string, else zero.
    inside: u64,
    /// 1 if the first byte of the block is escaped.
    escaped: u64,
    /// Bytes at the start of the block that must be hexadecimal digits.
    hex_due: u64,
}

/// What a block holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Bytes outside of strings; the quotes belong to the string.
    pub outside: u64,
    /// Opening quotes.
    pub opening: u64,
    /// Bytes that a string must not contain, or not there.
    pub faults: u64,
}

impl Strings {
    pub const fn new() -> Self {
        Self {
            inside: 0,
            escaped: 0,
            hex_due: 0,
        }
    }

    /// Whether a string is open.
    pub const fn open(&self) -> bool {
        self.inside != 0
    }

    /// Judges the next block.
    #[inline(always)]
    pub fn step<B: Bytes>(&mut self, bytes: B) -> Found {
        let backslashes = bytes.eq(b'\\');
        let mut quotes = bytes.eq(b'"');
        let mut faults = 0;
        if (backslashes | self.escaped | self.hex_due) != 0 {
            let escaped = self.escaped(backslashes);
            quotes &= !escaped;
            faults = self.bad_escapes(bytes, escaped);
        }
        // From each opening quote up to, but without, its closing one.
        let inside = bytes.prefix_xor(quotes) ^ self.inside;
        self.inside = 0_u64.wrapping_sub(inside >> 63);
        faults |= inside & bytes.below(b' ');
        Found {
            outside: !(inside | quotes),
            opening: quotes & inside,
            faults,
        }
    }

    /// Bytes that follow a backslash which is not itself escaped.
    ///
    /// In a run of backslashes every second byte from its start is an escape. Subtracting the
    /// run's first bits from the odd bits flips, by borrowing, the parity of runs that start on
    /// one side (simdjson, `json_escape_scanner`).
    #[inline(always)]
    fn escaped(&mut self, backslashes: u64) -> u64 {
        let starts = backslashes & !self.escaped;
        let codes = (((starts << 1) | ODD_BITS).wrapping_sub(starts)) ^ ODD_BITS;
        let escaped = codes ^ (backslashes | self.escaped);
        self.escaped = (codes & backslashes) >> 63;
        escaped
    }

    /// Escaped bytes that form no escape, and other bytes than digits behind `\u`.
    ///
    /// A backslash outside of a string is a fault of its own, so all of `escaped` may be taken
    /// to be inside one.
    #[inline(always)]
    fn bad_escapes<B: Bytes>(&mut self, bytes: B, escaped: u64) -> u64 {
        let bad = escaped & !bytes.in_class(&ESCAPED_LOW, &ESCAPED_HIGH);
        let unicode = escaped & bytes.eq(b'u');
        if (unicode | self.hex_due) == 0 {
            return bad;
        }
        let due = (unicode << 1) | (unicode << 2) | (unicode << 3) | (unicode << 4) | self.hex_due;
        self.hex_due = (unicode >> 63) | (unicode >> 62) | (unicode >> 61) | (unicode >> 60);
        bad | (due & !bytes.in_class(&HEX_LOW, &HEX_HIGH))
    }
}

/// What is wrong with a byte that is a fault inside a string.
pub(super) const fn describe(byte: u8) -> &'static str {
    if byte < b' ' {
        "control character in a string"
    } else {
        "invalid escape in a string"
    }
}
