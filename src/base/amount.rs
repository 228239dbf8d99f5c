//! Numbers as an operator writes them: `9MiB`, `250ms`, `1024`.

use std::{fmt, time::Duration};

/// A number and what it counts. Shown exactly, in the largest unit that divides it, so that it may be
/// typed as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// Things.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// A time.
    Time(Duration),
}

/// A size in the largest binary unit that divides it; `None` if none does.
#[must_use]
pub fn in_binary_units(bytes: u64) -> Option<String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    units.into_iter().find_map(|(unit, shift)| {
        let divides = bytes > 0 && bytes.trailing_zeros() >= shift;
        divides.then(|| format!("{}{unit}", bytes >> shift))
    })
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Bytes(1) => f.write_str("1 byte"),
            Self::Bytes(bytes) => match in_binary_units(bytes) {
                Some(size) => f.write_str(&size),
                None => write!(f, "{bytes} bytes"),
            },
            Self::Time(time) => {
                let (seconds, millis) = (time.as_secs(), time.as_millis());
                if Duration::from_secs(seconds) != time {
                    return match Duration::from_millis(time.subsec_millis().into()) {
                        rest if rest.subsec_nanos() == time.subsec_nanos() => {
                            write!(f, "{millis}ms")
                        }
                        _ => write!(f, "{time:?}"),
                    };
                }
                match seconds {
                    0 => f.write_str("0s"),
                    _ if seconds.is_multiple_of(3600) => write!(f, "{}h", seconds / 3600),
                    _ if seconds.is_multiple_of(60) => write!(f, "{}m", seconds / 60),
                    _ => write!(f, "{seconds}s"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_as_they_are_typed() {
        let time = |millis| Amount::Time(Duration::from_millis(millis));
        for (amount, shown) in [
            (Amount::Count(1024), "1024"),
            (Amount::Bytes(0), "0 bytes"),
            (Amount::Bytes(1), "1 byte"),
            (Amount::Bytes(1000), "1000 bytes"),
            (Amount::Bytes(1024), "1KiB"),
            (Amount::Bytes(9 << 20), "9MiB"),
            (Amount::Bytes((9 << 20) + 1024), "9217KiB"),
            (Amount::Bytes(1 << 40), "1024GiB"),
            (time(0), "0s"),
            (time(1), "1ms"),
            (time(1500), "1500ms"),
            (time(61_000), "61s"),
            (time(120_000), "2m"),
            (time(7_200_000), "2h"),
            (Amount::Time(Duration::from_nanos(1500)), "1.5µs"),
        ] {
            assert_eq!(amount.to_string(), shown);
        }
    }
}
