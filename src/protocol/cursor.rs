//! Cursors: what keeps a shared cache from serving a live reader the same
//! answer for ever (base protocol 10.1).

use crate::{
    base::limits::{CURSOR_EPOCH_S, CURSOR_INTERVAL_S, JS_INTEGER_MAX},
    protocol::offset::decimal,
};

/// Most seconds by which a cursor is pushed past the client's own.
const JITTER_S_MAX: u64 = 3600;

/// A client's own cursor. One that is no decimal below 2^53 counts as absent.
#[must_use]
pub fn of_client(text: &[u8]) -> Option<u64> {
    decimal(text).filter(|client| *client < JS_INTEGER_MAX)
}

/// The number of the interval at `now_ms`.
#[must_use]
pub fn interval(now_ms: u64) -> u64 {
    (now_ms / 1000).saturating_sub(CURSOR_EPOCH_S) / CURSOR_INTERVAL_S
}

/// The cursor of a live answer at `now_ms`.
///
/// The number of the current interval, unless the client's own cursor is not below it: then one
/// strictly greater, by 1 to 3,600 seconds' worth of intervals, chosen by `random`.
#[must_use]
pub fn cursor(now_ms: u64, client: Option<u64>, random: u64) -> u64 {
    let interval = interval(now_ms);
    match client {
        Some(client) if client >= interval => {
            let jitter_s = (random % JITTER_S_MAX).saturating_add(1);
            client.saturating_add((jitter_s / CURSOR_INTERVAL_S).max(1))
        }
        _ => interval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = (CURSOR_EPOCH_S + 1000 * CURSOR_INTERVAL_S + 3) * 1000;

    #[test]
    fn an_interval_has_one_cursor() {
        assert_eq!(cursor(NOW_MS, None, 1), 1000);
        assert_eq!(cursor(NOW_MS + 10_000, None, 2), 1000);
        assert_eq!(cursor(NOW_MS, Some(999), 3), 1000);
        assert_eq!(cursor(NOW_MS, of_client(b"abc"), 3), 1000);
        assert_eq!(cursor(NOW_MS, of_client(b"9007199254740992"), 3), 1000);
        assert_eq!(cursor(0, None, 0), 0);
    }

    #[test]
    fn a_cursor_never_goes_back() {
        for client in [1000u64, 1001, 5_000_000] {
            for random in [0, 1, 19, 3599, u64::MAX] {
                let next = cursor(NOW_MS, Some(client), random);
                assert!(
                    next > client && next <= client + 180,
                    "{client} {random} {next}"
                );
            }
        }
    }

    #[test]
    fn a_clock_set_back_or_forward_does_not_turn_a_reader_back() {
        let mut now_ms = NOW_MS;
        let mut last = cursor(now_ms, None, 0);
        for step_ms in [-3_600_000, 3_600_000, 20_000, 3_600_000, -7_200_000, 0] {
            now_ms = now_ms.checked_add_signed(step_ms).expect("after 1970");
            let next = cursor(now_ms, Some(last), 7);
            assert!(next > last, "{step_ms}");
            last = next;
        }
    }
}
