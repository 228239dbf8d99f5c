//! Random JSON texts, from a seed.

/// A small generator (SplitMix64): the same texts for the same seed, everywhere.
#[derive(Clone, Debug)]
pub(super) struct Random {
    pub seed: u64,
    state: u64,
}

impl Random {
    /// Seeded by `THALWEG_SEED`, else by a fixed number.
    pub fn from_environment() -> Self {
        let set = std::env::var("THALWEG_SEED").ok();
        let seed = set
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(0x7448_414C);
        Self { seed, state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

const SCALARS: &[&str] = &[
    "0",
    "-0",
    "7",
    "-12",
    "1234567890123456789012345678901234567890",
    "0.5",
    "-0.0e0",
    "1e400",
    "1E+2",
    "12.0625e-17",
    "-1.50e3",
    "0e0",
    "true",
    "false",
    "null",
    "\"\"",
];

const STRING_PARTS: &[&str] = &[
    "a",
    "key",
    " ",
    "\\\\",
    "\\\"",
    "\\n",
    "\\u0041",
    "\\uD83D\\uDE00",
    "\\ud800",
    "\\/",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\u{e9}",
    "\u{20ac}",
    "\u{1F600}",
    "\u{7ff}",
    "\u{10FFFF}",
    "0",
    "true",
    "\u{7f}",
    "the quick brown fox jumps over the lazy dog, and over it again, until the block is full",
];

/// How the pieces of a text are put together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Space {
    None,
    /// Random runs of all four kinds.
    Random,
}

/// A valid text of about `size` tokens.
pub(super) fn text(random: &mut Random, size: usize, space: Space) -> Vec<u8> {
    let mut out = Vec::new();
    if random.below(3) == 0 {
        // A top-level array of several messages.
        let mut separator = b'[';
        for _ in 0..1 + random.below(6) {
            whitespace(random, space, &mut out);
            out.push(separator);
            value(random, size / 4, space, &mut out);
            separator = b',';
        }
        out.push(b']');
    } else {
        value(random, size, space, &mut out);
    }
    whitespace(random, space, &mut out);
    out
}

fn value(random: &mut Random, size: usize, space: Space, out: &mut Vec<u8>) {
    whitespace(random, space, out);
    match (random.below(4), size) {
        (0 | 1, 2..) => {
            let object = random.below(2) == 0;
            out.push(if object { b'{' } else { b'[' });
            let count = random.below(6);
            for index in 0..count {
                if index > 0 {
                    out.push(b',');
                }
                whitespace(random, space, out);
                if object {
                    string(random, out);
                    whitespace(random, space, out);
                    out.push(b':');
                }
                value(random, size / count, space, out);
            }
            whitespace(random, space, out);
            out.push(if object { b'}' } else { b']' });
        }
        (2, _) => string(random, out),
        _ => out.extend_from_slice(random.one_of(SCALARS).as_bytes()),
    }
    whitespace(random, space, out);
}

fn string(random: &mut Random, out: &mut Vec<u8>) {
    out.push(b'"');
    for _ in 0..random.below(5) {
        out.extend_from_slice(random.one_of(STRING_PARTS).as_bytes());
    }
    out.push(b'"');
}

fn whitespace(random: &mut Random, space: Space, out: &mut Vec<u8>) {
    let most = match (space, random.below(16)) {
        (Space::None, _) | (_, 0..8) => 0,
        (_, 8..14) => 3,
        (_, 14) => 12,
        _ => 150,
    };
    for _ in 0..random.below(most + 1) {
        out.push(*random.one_of(b" \t\n\r"));
    }
}

/// Changes one to three bytes of `text`: replaced, inserted, removed or cut off.
pub(super) fn mutate(random: &mut Random, text: &mut Vec<u8>) {
    const TELLING: &[u8] =
        b"{}[],:\"\\ \n\t\r\0\x1f0019-+.eEtfnu/\x80\xBF\xC0\xC3\xE0\xED\xF0\xF4\xF5\xFF";
    for _ in 0..1 + random.below(3) {
        if text.is_empty() {
            return;
        }
        let at = random.below(text.len());
        let byte = match random.below(4) {
            0 => random.next() as u8,
            _ => *random.one_of(TELLING),
        };
        match random.below(8) {
            0..3 => text[at] = byte,
            3..5 => text.insert(at, byte),
            5..7 => _ = text.remove(at),
            _ => text.truncate(at),
        }
    }
}
