//! How set limits must relate: what no relation here refuses can be served.

use std::{error, fmt, time::Duration};

use super::{
    BLOCK_BYTES_MAX, DISK_ALIGN, HEAD_BYTES_MIN, JOURNAL_SLACK_BYTES, LONG_POLL_MS_MAX, Limits,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SSE_HEARTBEAT_MAX, STAGED_BYTES_MAX, TIMEOUT_MAX,
};

impl Limits {
    /// Refuses values that cannot work together, or that would break the protocol.
    ///
    /// Only that: a value that merely never takes effect (a body timeout above the total) is the
    /// operator's choice.
    ///
    /// # Errors
    /// The first relation that does not hold, with its numbers.
    pub fn check(&self) -> Result<(), LimitsError> {
        self.check_counts()?;
        self.check_bytes()?;
        self.check_timeouts()
    }

    fn check_counts(&self) -> Result<(), LimitsError> {
        for (setting, have) in [
            ("producers_per_stream_max", self.producers_per_stream_max),
            ("connections_max", self.connections_max),
            ("live_reads_max", self.live_reads_max),
            ("mailbox_requests_max", self.mailbox_requests_max),
            ("pipeline_max", self.pipeline_max),
        ] {
            at_least(
                setting,
                have as u64,
                1,
                "with none of them nothing can be served",
            )?;
        }
        Ok(())
    }

    fn check_bytes(&self) -> Result<(), LimitsError> {
        let body = self.request_bytes_max;
        at_least("request_bytes_max", body, 1, "no request could carry data")?;

        let line = self.request_line_bytes_max as u64;
        let why = "the longest stream id must fit";
        at_least("request_line_bytes_max", line, HEAD_BYTES_MIN as u64, why)?;
        let head = self.head_bytes_max as u64;
        at_least(
            "head_bytes_max",
            head,
            line,
            "the head holds the request line",
        )?;

        let snapshot = self.snapshot_bytes_max;
        let why = "a snapshot may be published in one request";
        at_least("snapshot_bytes_max", snapshot, body, why)?;
        let why = "its parts wait under the fixed bound on staged bytes";
        at_most("snapshot_bytes_max", snapshot, STAGED_BYTES_MAX, why)?;

        let why = "the largest request body (request_bytes_max) must fit";
        at_least("memory_bytes_max", self.memory_bytes_max, body, why)?;
        at_least(
            "body_memory_bytes_max",
            self.body_memory_bytes_max,
            body,
            why,
        )?;

        let file = self.journal_file_bytes;
        let why = "the record of the largest request body (request_bytes_max) must fit";
        at_least(
            "journal_file_bytes",
            file,
            body.saturating_add(JOURNAL_SLACK_BYTES),
            why,
        )?;
        if !file.is_multiple_of(DISK_ALIGN as u64) {
            return Err(LimitsError::Unaligned {
                setting: "journal_file_bytes",
                have: file,
                multiple: DISK_ALIGN as u64,
            });
        }

        let why = "a checkpoint must be worth its writing";
        let least = BLOCK_BYTES_MAX as u64;
        at_least("checkpoint_bytes", self.checkpoint_bytes, least, why)?;
        let why = "a write of blocks must fit";
        let segment = self.segment_bytes;
        at_least("segment_bytes", segment, SEGMENT_BYTES_MIN, why)?;
        let why = "offsets in a segment are 32 bits";
        at_most("segment_bytes", segment, SEGMENT_BYTES_MAX, why)
    }

    fn check_timeouts(&self) -> Result<(), LimitsError> {
        // Zero means "do not wait" for the two drains, and "at once always" for the others.
        let tick = Duration::from_millis(1);
        let long_poll_max = Duration::from_millis(LONG_POLL_MS_MAX);
        for (setting, have, least, most) in [
            ("head_timeout", self.head_timeout, tick, TIMEOUT_MAX),
            ("body_timeout", self.body_timeout, tick, TIMEOUT_MAX),
            (
                "body_total_timeout",
                self.body_total_timeout,
                tick,
                TIMEOUT_MAX,
            ),
            ("idle_timeout", self.idle_timeout, tick, TIMEOUT_MAX),
            ("write_timeout", self.write_timeout, tick, TIMEOUT_MAX),
            (
                "drain_timeout",
                self.drain_timeout,
                Duration::ZERO,
                TIMEOUT_MAX,
            ),
            (
                "long_poll_timeout",
                self.long_poll_timeout,
                tick,
                long_poll_max,
            ),
            ("sse_duration", self.sse_duration, tick, TIMEOUT_MAX),
            ("sse_heartbeat", self.sse_heartbeat, tick, SSE_HEARTBEAT_MAX),
            (
                "shutdown_timeout",
                self.shutdown_timeout,
                Duration::ZERO,
                TIMEOUT_MAX,
            ),
        ] {
            if have < least {
                return Err(LimitsError::TooShort {
                    setting,
                    have,
                    least,
                });
            }
            if have > most {
                return Err(LimitsError::TooLong {
                    setting,
                    have,
                    most,
                });
            }
        }
        Ok(())
    }
}

/// A relation between [`Limits`] that does not hold; `setting` is the field's name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields say their names and the message their meaning"
)]
pub enum LimitsError {
    /// A size in bytes, or a count, below what another limit or the format needs.
    TooSmall {
        setting: &'static str,
        have: u64,
        least: u64,
        why: &'static str,
    },
    /// A size in bytes, or a count, above what can be kept.
    TooLarge {
        setting: &'static str,
        have: u64,
        most: u64,
        why: &'static str,
    },
    /// A size on disk that direct I/O could not address.
    Unaligned {
        setting: &'static str,
        have: u64,
        multiple: u64,
    },
    /// A time in which nothing could happen.
    TooShort {
        setting: &'static str,
        have: Duration,
        least: Duration,
    },
    /// A time beyond what the protocol allows or a deadline can hold.
    TooLong {
        setting: &'static str,
        have: Duration,
        most: Duration,
    },
}

impl LimitsError {
    /// The field at fault.
    pub const fn setting(&self) -> &'static str {
        match self {
            Self::TooSmall { setting, .. }
            | Self::TooLarge { setting, .. }
            | Self::Unaligned { setting, .. }
            | Self::TooShort { setting, .. }
            | Self::TooLong { setting, .. } => setting,
        }
    }
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall {
                setting,
                have,
                least,
                why,
            } => {
                write!(
                    f,
                    "{setting} is {have}, and must be at least {least}: {why}"
                )
            }
            Self::TooLarge {
                setting,
                have,
                most,
                why,
            } => {
                write!(f, "{setting} is {have}, and may be at most {most}: {why}")
            }
            Self::Unaligned {
                setting,
                have,
                multiple,
            } => {
                write!(
                    f,
                    "{setting} is {have}, and must be a multiple of {multiple}"
                )
            }
            Self::TooShort {
                setting,
                have,
                least,
            } => {
                write!(f, "{setting} is {have:?}, and must be at least {least:?}")
            }
            Self::TooLong {
                setting,
                have,
                most,
            } => {
                write!(f, "{setting} is {have:?}, and may be at most {most:?}")
            }
        }
    }
}

impl error::Error for LimitsError {}

fn at_least(
    setting: &'static str,
    have: u64,
    least: u64,
    why: &'static str,
) -> Result<(), LimitsError> {
    if have >= least {
        Ok(())
    } else {
        Err(LimitsError::TooSmall {
            setting,
            have,
            least,
            why,
        })
    }
}

fn at_most(
    setting: &'static str,
    have: u64,
    most: u64,
    why: &'static str,
) -> Result<(), LimitsError> {
    if have <= most {
        Ok(())
    } else {
        Err(LimitsError::TooLarge {
            setting,
            have,
            most,
            why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default limits with one change.
    fn changed(change: impl FnOnce(&mut Limits)) -> Limits {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    }

    #[test]
    fn defaults_hold() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn each_relation_names_its_setting() {
        let day = Duration::from_secs(24 * 60 * 60);
        for (setting, limits) in [
            ("pipeline_max", changed(|l| l.pipeline_max = 0)),
            (
                "mailbox_requests_max",
                changed(|l| l.mailbox_requests_max = 0),
            ),
            ("request_bytes_max", changed(|l| l.request_bytes_max = 0)),
            (
                "request_line_bytes_max",
                changed(|l| l.request_line_bytes_max = 100),
            ),
            (
                "head_bytes_max",
                changed(|l| l.head_bytes_max = l.request_line_bytes_max - 1),
            ),
            (
                "snapshot_bytes_max",
                changed(|l| l.snapshot_bytes_max = l.request_bytes_max - 1),
            ),
            (
                "snapshot_bytes_max",
                changed(|l| l.snapshot_bytes_max = STAGED_BYTES_MAX + 1),
            ),
            (
                "memory_bytes_max",
                changed(|l| l.memory_bytes_max = l.request_bytes_max - 1),
            ),
            (
                "body_memory_bytes_max",
                changed(|l| l.body_memory_bytes_max = 1),
            ),
            (
                "journal_file_bytes",
                changed(|l| l.journal_file_bytes = l.request_bytes_max),
            ),
            ("journal_file_bytes", changed(|l| l.journal_file_bytes += 1)),
            ("head_timeout", changed(|l| l.head_timeout = Duration::ZERO)),
            ("idle_timeout", changed(|l| l.idle_timeout = 366 * day)),
            (
                "long_poll_timeout",
                changed(|l| l.long_poll_timeout = Duration::from_secs(61)),
            ),
            (
                "sse_heartbeat",
                changed(|l| l.sse_heartbeat = Duration::from_secs(16)),
            ),
        ] {
            let error = limits.check().expect_err(setting);
            assert_eq!(error.setting(), setting, "{error}");
            assert!(error.to_string().starts_with(setting), "{error}");
        }
    }

    #[test]
    fn drains_may_be_switched_off() {
        let limits = changed(|l| {
            l.drain_bytes_max = 0;
            l.drain_timeout = Duration::ZERO;
            l.shutdown_timeout = Duration::ZERO;
        });
        assert_eq!(limits.check(), Ok(()));
    }

    #[test]
    fn tiny_bounds_are_allowed() {
        let limits = changed(|l| {
            l.request_bytes_max = 1024;
            l.snapshot_bytes_max = 4096;
            l.memory_bytes_max = 8192;
            l.body_memory_bytes_max = 2048;
            l.journal_file_bytes = 2 * JOURNAL_SLACK_BYTES;
            l.request_line_bytes_max = HEAD_BYTES_MIN;
            l.head_bytes_max = HEAD_BYTES_MIN;
        });
        assert_eq!(limits.check(), Ok(()));
    }
}
