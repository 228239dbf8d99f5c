//! How set limits must relate: what no relation here refuses can be served.

use std::{error, fmt, time::Duration};

use crate::base::amount::Amount;

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
            ("producers-per-stream-max", self.producers_per_stream_max),
            ("connections-max", self.connections_max),
            ("live-reads-max", self.live_reads_max),
            ("mailbox-requests-max", self.mailbox_requests_max),
            ("pipeline-max", self.pipeline_max),
        ] {
            at_least(
                setting,
                Amount::Count(have as u64),
                Amount::Count(1),
                "with none of them nothing can be served",
            )?;
        }
        Ok(())
    }

    fn check_bytes(&self) -> Result<(), LimitsError> {
        let at_least = |setting, have, least, why| {
            at_least(setting, Amount::Bytes(have), Amount::Bytes(least), why)
        };
        let at_most = |setting, have, most, why| {
            at_most(setting, Amount::Bytes(have), Amount::Bytes(most), why)
        };
        let body = self.request_bytes_max;
        at_least("request-bytes-max", body, 1, "no request could carry data")?;

        let line = self.request_line_bytes_max as u64;
        let why = "the longest stream id must fit";
        at_least("request-line-bytes-max", line, HEAD_BYTES_MIN as u64, why)?;
        let head = self.head_bytes_max as u64;
        at_least(
            "head-bytes-max",
            head,
            line,
            "the head holds the request line",
        )?;

        let snapshot = self.snapshot_bytes_max;
        let why = "a snapshot may be published in one request";
        at_least("snapshot-bytes-max", snapshot, body, why)?;
        let why = "its parts wait under the fixed bound on staged bytes";
        at_most("snapshot-bytes-max", snapshot, STAGED_BYTES_MAX, why)?;

        let why = "the largest request body (--request-bytes-max) must fit";
        at_least("memory-bytes-max", self.memory_bytes_max, body, why)?;
        at_least(
            "body-memory-bytes-max",
            self.body_memory_bytes_max,
            body,
            why,
        )?;

        let file = self.journal_file_bytes;
        let why = "the record of the largest request body (--request-bytes-max) must fit";
        at_least(
            "journal-file-bytes",
            file,
            body.saturating_add(JOURNAL_SLACK_BYTES),
            why,
        )?;
        if !file.is_multiple_of(DISK_ALIGN as u64) {
            return Err(LimitsError::Unaligned {
                setting: "journal-file-bytes",
                have: Amount::Bytes(file),
                multiple: Amount::Bytes(DISK_ALIGN as u64),
            });
        }

        let why = "a checkpoint must be worth its writing";
        let least = BLOCK_BYTES_MAX as u64;
        at_least("checkpoint-bytes", self.checkpoint_bytes, least, why)?;
        let why = "a write of blocks must fit";
        let segment = self.segment_bytes;
        at_least("segment-bytes", segment, SEGMENT_BYTES_MIN, why)?;
        let why = "offsets in a segment are 32 bits";
        at_most("segment-bytes", segment, SEGMENT_BYTES_MAX, why)
    }

    fn check_timeouts(&self) -> Result<(), LimitsError> {
        // Zero means "do not wait" for the two drains, and "at once always" for the others.
        let tick = Duration::from_millis(1);
        let long_poll_max = Duration::from_millis(LONG_POLL_MS_MAX);
        for (setting, have, least, most) in [
            ("head-timeout", self.head_timeout, tick, TIMEOUT_MAX),
            ("body-timeout", self.body_timeout, tick, TIMEOUT_MAX),
            (
                "body-total-timeout",
                self.body_total_timeout,
                tick,
                TIMEOUT_MAX,
            ),
            ("idle-timeout", self.idle_timeout, tick, TIMEOUT_MAX),
            ("write-timeout", self.write_timeout, tick, TIMEOUT_MAX),
            (
                "drain-timeout",
                self.drain_timeout,
                Duration::ZERO,
                TIMEOUT_MAX,
            ),
            (
                "long-poll-timeout",
                self.long_poll_timeout,
                tick,
                long_poll_max,
            ),
            ("sse-duration", self.sse_duration, tick, TIMEOUT_MAX),
            ("sse-heartbeat", self.sse_heartbeat, tick, SSE_HEARTBEAT_MAX),
            (
                "shutdown-timeout",
                self.shutdown_timeout,
                Duration::ZERO,
                TIMEOUT_MAX,
            ),
        ] {
            let [have, least, most] = [have, least, most].map(Amount::Time);
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

/// A relation between [`Limits`] that does not hold; `setting` is its name, with dashes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields say their names and the message their meaning"
)]
pub enum LimitsError {
    /// A size in bytes, or a count, below what another limit or the format needs.
    TooSmall {
        setting: &'static str,
        have: Amount,
        least: Amount,
        why: &'static str,
    },
    /// A size in bytes, or a count, above what can be kept.
    TooLarge {
        setting: &'static str,
        have: Amount,
        most: Amount,
        why: &'static str,
    },
    /// A size on disk that direct I/O could not address.
    Unaligned {
        setting: &'static str,
        have: Amount,
        multiple: Amount,
    },
    /// A time in which nothing could happen.
    TooShort {
        setting: &'static str,
        have: Amount,
        least: Amount,
    },
    /// A time beyond what the protocol allows or a deadline can hold.
    TooLong {
        setting: &'static str,
        have: Amount,
        most: Amount,
    },
}

impl LimitsError {
    /// The setting at fault.
    pub const fn setting(&self) -> &'static str {
        match self {
            Self::TooSmall { setting, .. }
            | Self::TooLarge { setting, .. }
            | Self::Unaligned { setting, .. }
            | Self::TooShort { setting, .. }
            | Self::TooLong { setting, .. } => setting,
        }
    }

    /// Its value.
    pub const fn have(&self) -> Amount {
        match self {
            Self::TooSmall { have, .. }
            | Self::TooLarge { have, .. }
            | Self::Unaligned { have, .. }
            | Self::TooShort { have, .. }
            | Self::TooLong { have, .. } => *have,
        }
    }

    /// What would have been right, and why: to follow "and".
    pub fn wanted(&self) -> String {
        match self {
            Self::TooSmall { least, why, .. } => format!("must be at least {least}: {why}"),
            Self::TooLarge { most, why, .. } => format!("may be at most {most}: {why}"),
            Self::Unaligned { multiple, .. } => format!("must be a multiple of {multiple}"),
            Self::TooShort { least, .. } => format!("must be at least {least}"),
            Self::TooLong { most, .. } => format!("may be at most {most}"),
        }
    }
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setting, have, wanted) = (self.setting(), self.have(), self.wanted());
        write!(f, "--{setting} is {have}, and {wanted}")
    }
}

impl error::Error for LimitsError {}

fn at_least(
    setting: &'static str,
    have: Amount,
    least: Amount,
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
    have: Amount,
    most: Amount,
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
            ("pipeline-max", changed(|l| l.pipeline_max = 0)),
            (
                "mailbox-requests-max",
                changed(|l| l.mailbox_requests_max = 0),
            ),
            ("request-bytes-max", changed(|l| l.request_bytes_max = 0)),
            (
                "request-line-bytes-max",
                changed(|l| l.request_line_bytes_max = 100),
            ),
            (
                "head-bytes-max",
                changed(|l| l.head_bytes_max = l.request_line_bytes_max - 1),
            ),
            (
                "snapshot-bytes-max",
                changed(|l| l.snapshot_bytes_max = l.request_bytes_max - 1),
            ),
            (
                "snapshot-bytes-max",
                changed(|l| l.snapshot_bytes_max = STAGED_BYTES_MAX + 1),
            ),
            (
                "memory-bytes-max",
                changed(|l| l.memory_bytes_max = l.request_bytes_max - 1),
            ),
            (
                "body-memory-bytes-max",
                changed(|l| l.body_memory_bytes_max = 1),
            ),
            (
                "journal-file-bytes",
                changed(|l| l.journal_file_bytes = l.request_bytes_max),
            ),
            ("journal-file-bytes", changed(|l| l.journal_file_bytes += 1)),
            ("head-timeout", changed(|l| l.head_timeout = Duration::ZERO)),
            ("idle-timeout", changed(|l| l.idle_timeout = 366 * day)),
            (
                "long-poll-timeout",
                changed(|l| l.long_poll_timeout = Duration::from_secs(61)),
            ),
            (
                "sse-heartbeat",
                changed(|l| l.sse_heartbeat = Duration::from_secs(16)),
            ),
        ] {
            let error = limits.check().expect_err(setting);
            assert_eq!(error.setting(), setting, "{error}");
            assert!(
                error.to_string().starts_with(&format!("--{setting} is ")),
                "{error}"
            );
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
