//! Why a body is not JSON message text.
#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};

use crate::base::limits::JSON_DEPTH_MAX;

/// Why a body is not JSON message text (JSON Message Text, rules 1, 3 and 4).
///
/// Offsets count bytes from the start of the body. [`Display`] gives a message
/// for the client that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// The byte at `at` cannot stand there in RFC 8259 text.
    Syntax {
        /// Offset of that byte.
        at: u64,
        /// What is wrong with it, in a few words.
        what: &'static str,
    },
    /// The sequence that starts at `at` is not UTF-8.
    Utf8 {
        /// Offset of the first byte of the sequence.
        at: u64,
    },
    /// The array or object that opens at `at` makes its message too deep.
    Depth {
        /// Offset of the opening bracket.
        at: u64,
    },
    /// The body ends inside a value.
    Truncated,
    /// The body holds nothing, or nothing but whitespace.
    Empty,
}

impl Display for JsonError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { at, what } => write!(f, "invalid JSON at byte {at}: {what}"),
            Self::Utf8 { at } => write!(f, "invalid UTF-8 at byte {at}"),
            Self::Depth { at } => write!(
                f,
                "JSON nested too deeply at byte {at}: a message may be {JSON_DEPTH_MAX} levels deep"
            ),
            Self::Truncated => f.write_str("invalid JSON: the body ends inside a value"),
            Self::Empty => f.write_str("invalid JSON: the body holds no value"),
        }
    }
}

impl std::error::Error for JsonError {}

#[cfg(test)]
mod tests {
    use super::JsonError;

    #[test]
    fn messages_name_the_place() {
        let syntax = JsonError::Syntax {
            at: 7,
            what: "unexpected ','",
        };
        assert_eq!(syntax.to_string(), "invalid JSON at byte 7: unexpected ','");
        assert_eq!(
            JsonError::Depth { at: 127 }.to_string(),
            "JSON nested too deeply at byte 127: a message may be 127 levels deep"
        );
    }
}
