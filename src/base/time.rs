//! Time as a parameter, and the two ways HTTP writes it.
//!
//! Rules take `now` or a [`Clock`]; only `server` makes a [`SystemClock`], and
//! tests a [`ManualClock`]. Two readings, not to be mixed up: *wall* time
//! ([`Clock::now_ms`], Unix milliseconds) is what clients and the disk see and
//! may be stepped in either direction; *monotonic* time
//! ([`Clock::monotonic_ns`]) only moves forward and measures waits.
//!
//! | clock     | what goes by it                                                        |
//! |-----------|------------------------------------------------------------------------|
//! | wall      | `Stream-TTL`, `Stream-Expires-At`, and `max-age` with them; cursors;   |
//! |           | the age of staged parts; `Date`; times in logs and reports             |
//! | monotonic | every timeout and interval, long-polls, drains, group commit, latency, |
//! |           | and the seconds in which slow requests are counted                     |
//! | neither   | order, offsets, producers, incarnations, batches, epochs, retention    |
//!
//! Lifetimes go by the wall clock since they go on while the server does not run.
//! What a step of it does to them:
//! - *back*: nothing ends early. A window only ever restarts forwards, so what was
//!   renewed before the step lives longer, by as much; a fixed end comes when the
//!   clock shows it.
//! - *forward*: what is over by the new time is over, and deleted, as if the time had
//!   passed; setting the clock right brings nothing back. What is renewed before
//!   that lives longer, by as much.
//! - between two runs: as while serving. Replay never asks the clock: a record says
//!   when it was made.
//!
//! Cursors: a reader that shows its own gets a greater one, whatever the clock says.
//!
//! [`parse_rfc3339`] accepts RFC 3339's `date-time` and nothing else (ISO 8601
//! has many more spellings, and libraries add their own): who sends a date
//! alone, a week date or a zone name gets an error, not a guess.

use std::{
    cell::Cell,
    rc::Rc,
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::{SignedDuration, civil};

/// Last millisecond of year 9999: RFC 3339 cannot write a later one.
pub const WALL_MS_MAX: u64 = 253_402_300_799_999;

/// The Unix epoch on a clock face; arithmetic on it needs no time zone.
const EPOCH: civil::DateTime = civil::date(1970, 1, 1).at(0, 0, 0, 0);

/// A source of time.
pub trait Clock {
    /// Wall time, in Unix milliseconds; may be stepped by the operator.
    fn now_ms(&self) -> u64;

    /// Time since some fixed moment of this process, in nanoseconds; never goes back.
    fn monotonic_ns(&self) -> u64;
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now_ms(&self) -> u64 {
        (**self).now_ms()
    }

    fn monotonic_ns(&self) -> u64 {
        (**self).monotonic_ns()
    }
}

/// The machine's clocks. All instances share one monotonic origin, so that readings taken on
/// different cores compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// The moment [`SystemClock`] counts monotonic time from: its first use in this process.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SystemClock {
    /// A machine whose clock stands before 1970 reads 0.
    fn now_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, millis)
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when told to; clones show the same time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    hands: Rc<Hands>,
}

/// What the clones of one [`ManualClock`] share.
#[derive(Debug)]
struct Hands {
    wall: Cell<Duration>,
    monotonic: Cell<Duration>,
}

impl ManualClock {
    /// A clock that shows `now_ms` and has run for no time.
    pub fn new(now_ms: u64) -> Self {
        let hands = Hands {
            wall: Cell::new(Duration::from_millis(now_ms)),
            monotonic: Cell::new(Duration::ZERO),
        };
        Self {
            hands: Rc::new(hands),
        }
    }

    /// Lets time pass: both readings move, and fractions of a millisecond add up.
    pub fn advance(&self, by: Duration) {
        self.hands
            .wall
            .set(self.hands.wall.get().saturating_add(by));
        self.hands
            .monotonic
            .set(self.hands.monotonic.get().saturating_add(by));
    }

    /// Steps wall time, forward or back, as an operator or NTP may; no time passes.
    pub fn step_to(&self, now_ms: u64) {
        self.hands.wall.set(Duration::from_millis(now_ms));
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        millis(self.hands.wall.get())
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.hands.monotonic.get().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn millis(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Reads an RFC 3339 `date-time` (`2099-01-02T03:04:05Z`, fractions and offsets such as `+02:00`
/// included) as Unix milliseconds; `None` when it is anything else.
///
/// - Digits beyond milliseconds are dropped. `T` and `Z` may be lower case; a space for `T` is
///   refused, and so is white space around.
/// - A leap second is accepted where one can be, as `23:59:60` UTC, and equals the midnight that
///   follows: Unix time counts them as one.
/// - A moment before 1970 reads as 0, one after 9999 (an offset can name one) as
///   [`WALL_MS_MAX`]: both can be written back.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a four-digit year in milliseconds is far from the end of an i64"
)]
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let mut rest = Scanner(text.as_bytes());
    let date = {
        let (year, _) = (rest.number(4)?, rest.one_of(b"-")?);
        let (month, _) = (rest.number(2)?, rest.one_of(b"-")?);
        civil::Date::new(
            year.try_into().ok()?,
            month.try_into().ok()?,
            rest.number(2)?.try_into().ok()?,
        )
        .ok()?
    };
    rest.one_of(b"Tt")?;
    let (hour, _) = (rest.number(2)?, rest.one_of(b":")?);
    let (minute, _) = (rest.number(2)?, rest.one_of(b":")?);
    let second = rest.number(2)?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let fraction_ms = if rest.one_of(b".").is_some() {
        rest.fraction_ms()?
    } else {
        0
    };
    let offset_s = match rest.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let (hours, _) = (rest.number(2)?, rest.one_of(b":")?);
            let minutes = rest.number(2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let east_s = hours * 3600 + minutes * 60;
            if sign == b'+' { east_s } else { -east_s }
        }
        _ => 0,
    };
    if !rest.0.is_empty() {
        return None;
    }

    let days = date.at(0, 0, 0, 0).duration_since(EPOCH).as_hours() / 24;
    let utc_s = days * 86_400 + hour * 3600 + minute * 60 + second - offset_s;
    if second == 60 && utc_s % 86_400 != 0 {
        return None;
    }
    let utc_ms = utc_s * 1000 + fraction_ms;
    Some(u64::try_from(utc_ms).unwrap_or(0).min(WALL_MS_MAX))
}

/// Writes Unix milliseconds as `2099-01-02T03:04:05.000Z`; a moment past the year 9999 as its
/// last millisecond.
pub fn format_rfc3339(wall_ms: u64) -> String {
    let since_epoch = Duration::from_millis(wall_ms.min(WALL_MS_MAX));
    let moment =
        EPOCH.saturating_add(SignedDuration::try_from(since_epoch).unwrap_or(SignedDuration::MAX));
    format!("{moment:.3}Z")
}

/// What is left of a text; each step takes from the front or says `None`.
struct Scanner<'a>(&'a [u8]);

#[expect(
    clippy::arithmetic_side_effects,
    reason = "at most four digits a number"
)]
impl Scanner<'_> {
    /// One byte, if it is among `allowed`.
    fn one_of(&mut self, allowed: &[u8]) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        allowed.contains(&first).then(|| self.0 = rest)?;
        Some(first)
    }

    /// A number of exactly `digits` digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let mut number = 0;
        for _ in 0..digits {
            number = number * 10 + i64::from(self.one_of(b"0123456789")? - b'0');
        }
        Some(number)
    }

    /// One digit or more after a decimal point, as whole milliseconds.
    fn fraction_ms(&mut self) -> Option<i64> {
        let mut ms = self.number(1)? * 100;
        for weight in [10, 1].into_iter().chain(std::iter::repeat(0)) {
            let Some(digit) = self.number(1) else { break };
            ms += digit * weight;
        }
        Some(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_accepts() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.001Z", 1),
            ("2099-01-02T03:04:05.000Z", 4_071_006_245_000),
            ("2099-01-02t03:04:05z", 4_071_006_245_000),
            ("2099-01-02T05:04:05+02:00", 4_071_006_245_000),
            ("2099-01-01T21:34:05-05:30", 4_071_006_245_000),
            ("2099-01-02T03:04:05-00:00", 4_071_006_245_000),
            ("2099-01-02T03:04:05.5Z", 4_071_006_245_500),
            (
                "2099-01-02T03:04:05.1239999999999999999999Z",
                4_071_006_245_123,
            ),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            // Leap seconds, in UTC and elsewhere.
            ("2016-12-31T23:59:60Z", 1_483_228_800_000),
            ("2016-12-31T15:59:60.5-08:00", 1_483_228_800_500),
            // The ends of the range.
            ("9999-12-31T23:59:59.999Z", WALL_MS_MAX),
            ("9999-12-31T23:59:59.999-23:59", WALL_MS_MAX),
            ("0000-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999Z", 0),
            ("1970-01-01T00:00:00+00:01", 0),
        ] {
            assert_eq!(parse_rfc3339(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn rfc3339_refuses() {
        for text in [
            "",
            "Z",
            "tomorrow",
            "2099-01-02",
            "2099-01-02T03:04Z",
            "2099-01-02T03:04:05",
            "2099-01-02 03:04:05Z",
            "2099-01-02T03:04:05Z ",
            " 2099-01-02T03:04:05Z",
            "2099-01-02T03:04:05Z\0",
            "2099-01-02T03:04:05ZZ",
            "2099-01-02T03:04:05Z[UTC]",
            "2099-01-02T03:04:05+02:00[Europe/Paris]",
            "2099-01-02T03:04:05+02",
            "2099-01-02T03:04:05+0200",
            "2099-01-02T03:04:05+02:00:00",
            "2099-01-02T03:04:05+24:00",
            "2099-01-02T03:04:05+23:60",
            "2099-01-02T03:04:05\u{2212}02:00",
            "2099-01-02T03:04:05.Z",
            "2099-01-02T03:04:05,5Z",
            "2099-01-02T24:00:00Z",
            "2099-01-02T03:60:00Z",
            "2099-01-02T03:04:61Z",
            "2099-01-02T03:04:60Z",
            "2016-12-31T23:59:60+01:00",
            "2099-1-02T03:04:05Z",
            "2099-13-01T00:00:00Z",
            "2099-00-01T00:00:00Z",
            "2099-01-00T00:00:00Z",
            "2099-02-29T00:00:00Z",
            "2099-04-31T00:00:00Z",
            "20990102T030405Z",
            "2099-W01-1T03:04:05Z",
            "2099-002T03:04:05Z",
            "99-01-02T03:04:05Z",
            "12099-01-02T03:04:05Z",
            "+2099-01-02T03:04:05Z",
            "-2099-01-02T03:04:05Z",
            "+002099-01-02T03:04:05Z",
            "20\u{0669}9-01-02T03:04:05Z",
            "4071006245",
            "Fri, 02 Jan 2099 03:04:05 GMT",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_prefix_of_a_date_is_refused() {
        let text = "2099-01-02T03:04:05.250+02:00";
        assert!(parse_rfc3339(text).is_some());
        assert!((0..text.len()).all(|n| parse_rfc3339(&text[..n]).is_none()));
    }

    #[test]
    fn rfc3339_reads_what_it_writes() {
        assert_eq!(
            format_rfc3339(4_071_006_245_000),
            "2099-01-02T03:04:05.000Z"
        );
        assert_eq!(format_rfc3339(u64::MAX), "9999-12-31T23:59:59.999Z");
        for ms in [0, 1, 999, 951_782_400_000, 4_071_006_245_678, WALL_MS_MAX] {
            assert_eq!(parse_rfc3339(&format_rfc3339(ms)), Some(ms));
        }
    }

    #[test]
    fn manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(1000);
        let seen_elsewhere = clock.clone();
        clock.advance(Duration::from_micros(600));
        clock.advance(Duration::from_micros(600));
        assert_eq!(
            (seen_elsewhere.now_ms(), seen_elsewhere.monotonic_ns()),
            (1001, 1_200_000)
        );
        clock.step_to(5);
        assert_eq!(
            (seen_elsewhere.now_ms(), seen_elsewhere.monotonic_ns()),
            (5, 1_200_000)
        );
    }

    #[test]
    fn system_clock_runs() {
        let clock = SystemClock;
        let before_ns = clock.monotonic_ns();
        assert!(
            clock.now_ms() > 1_700_000_000_000,
            "this machine's clock is wrong"
        );
        assert!(clock.monotonic_ns() >= before_ns);
    }
}
