//! What one core has measured: a histogram for each series, kept to two
//! digits, and the sums that the text format wants.

use hdrhistogram::Histogram;

use super::stopwatch::{Stage, Stopwatch};
use crate::storage::journal::BatchTimes;

/// Longest time that is told apart from longer ones, in nanoseconds: ten minutes.
const MEASURED_NS_MAX: u64 = 600_000_000_000;
/// Digits kept: each value is off by less than 1 %.
const DIGITS: u8 = 2;
/// Upper bounds of the text format's buckets, in nanoseconds.
pub const BOUNDS_NS: [u64; 15] = [
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// A stage of requests.
    Stage(Stage),
    /// Whole requests: all their stages but the wait.
    Request,
    /// A change that a long-poll waited for: readable until the answer was written.
    LongPollDelivery,
    /// The same for an event stream.
    SseDelivery,
    /// A batch of this shard's own journal: issued until durable.
    JournalBatch,
}

impl Series {
    /// How many there are.
    pub const COUNT: usize = Stage::COUNT + 4;

    /// All, in the order in which they are listed.
    pub fn all() -> impl Iterator<Item = Self> {
        Stage::ALL.into_iter().map(Self::Stage).chain([
            Self::Request,
            Self::LongPollDelivery,
            Self::SseDelivery,
            Self::JournalBatch,
        ])
    }

    fn index(self) -> usize {
        match self {
            Self::Stage(stage) => stage as usize,
            Self::Request => Stage::COUNT,
            Self::LongPollDelivery => Stage::COUNT + 1,
            Self::SseDelivery => Stage::COUNT + 2,
            Self::JournalBatch => Stage::COUNT + 3,
        }
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::Request => "request",
            Self::LongPollDelivery => "long_poll_delivery",
            Self::SseDelivery => "sse_delivery",
            Self::JournalBatch => "journal_batch",
        }
    }

    /// What it measures.
    #[must_use]
    pub fn help(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.help(),
            Self::Request => "a whole request in the server: all stages but wait",
            Self::LongPollDelivery => {
                "new data readable, until a waiting long-poll's answer is written"
            }
            Self::SseDelivery => "new data readable, until an event stream's event is written",
            Self::JournalBatch => "a batch of this shard's journal: issued, until durable",
        }
    }
}

/// The times of one series.
#[derive(Clone, Debug)]
pub struct Times {
    /// Since the last reset, in nanoseconds.
    pub histogram: Histogram<u64>,
    /// Sum of what is in the histogram, in nanoseconds.
    pub sum_ns: u64,
    /// What was there at resets: counters of the text format never go back.
    before: Totals,
}

/// Counters of the text format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Values at most as large as each of [`BOUNDS_NS`], to within the histogram's 1 %.
    pub within: [u64; BOUNDS_NS.len()],
    /// Values.
    pub count: u64,
    /// Their sum, in nanoseconds.
    pub sum_ns: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.within.iter_mut().zip(other.within) {
            *mine = mine.saturating_add(theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

impl Times {
    #[expect(clippy::expect_used, reason = "every test of a profile makes one")]
    fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, MEASURED_NS_MAX, DIGITS)
                .expect("hdrhistogram takes these constants"),
            sum_ns: 0,
            before: Totals::default(),
        }
    }

    fn record(&mut self, ns: u64, times: u64) {
        self.histogram.saturating_record_n(ns, times);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(times));
    }

    fn reset(&mut self) {
        self.before = self.totals();
        self.histogram.reset();
        self.sum_ns = 0;
    }

    #[expect(
        clippy::expect_used,
        reason = "all histograms have the bounds of `new`"
    )]
    fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("all histograms have the same bounds");
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.before.add(&other.before);
    }

    /// The text format's counters since the start, resets or not.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = self.before.clone();
        let mut within = BOUNDS_NS.map(|_| 0u64);
        for step in self.histogram.iter_recorded() {
            let value_ns = self.histogram.lowest_equivalent(step.value_iterated_to());
            let first = BOUNDS_NS.partition_point(|&bound_ns| bound_ns < value_ns);
            for count in within.iter_mut().skip(first) {
                *count = count.saturating_add(step.count_since_last_iteration());
            }
        }
        totals.add(&Totals {
            within,
            count: self.histogram.len(),
            sum_ns: self.sum_ns,
        });
        totals
    }
}

/// Every series of one core, or of several together.
#[derive(Clone, Debug)]
pub struct Profile {
    series: Vec<Times>,
    /// When it began or was last reset, in Unix milliseconds.
    pub since_ms: u64,
}

impl Profile {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self {
            series: Series::all().map(|_| Times::new()).collect(),
            since_ms: now_ms,
        }
    }

    /// Takes note of one value, in nanoseconds.
    pub fn record(&mut self, series: Series, ns: u64) {
        self.record_n(series, ns, 1);
    }

    /// Takes note of one value, in nanoseconds, that stands for `count`.
    fn record_n(&mut self, series: Series, ns: u64, count: u64) {
        if let Some(times) = self.series.get_mut(series.index()) {
            times.record(ns, count);
        }
    }

    /// Takes note of requests that are over.
    pub fn requests(&mut self, over: &[Box<Stopwatch>]) {
        for stage in Stage::ALL {
            for watch in over {
                if let Some(ns) = watch.spent_ns(stage) {
                    self.record_n(Series::Stage(stage), ns, watch.stands_for);
                }
            }
        }
        for watch in over {
            let count = watch.stands_for;
            self.record_n(Series::Request, watch.total_ns(), count);
            if watch.published_ns > 0 {
                let ns = watch.last_ns().saturating_sub(watch.published_ns);
                self.record_n(Series::LongPollDelivery, ns, count);
            }
        }
    }

    /// Takes note of a batch, if its times are known.
    pub fn batch(&mut self, times: BatchTimes) {
        if times.issued_ns > 0 {
            let ns = times.durable_ns.saturating_sub(times.issued_ns);
            self.record(Series::JournalBatch, ns);
        }
    }

    /// Forgets what was measured; the counters of the text format go on.
    pub fn reset(&mut self, now_ms: u64) {
        self.series.iter_mut().for_each(Times::reset);
        self.since_ms = now_ms;
    }

    /// Adds what another core measured.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.series.iter_mut().zip(&other.series) {
            mine.add(theirs);
        }
        self.since_ms = self.since_ms.min(other.since_ms);
    }

    /// All series, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Series, &Times)> {
        Series::all().zip(&self.series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_their_place() {
        for (index, series) in Series::all().enumerate() {
            assert_eq!(series.index(), index);
        }
        assert_eq!(Series::all().count(), Series::COUNT);
    }

    #[test]
    fn buckets_count_what_lies_within() {
        let mut times = Times::new();
        for ns in [0, 999, 1_000, 5_001_000, 700_000_000_000] {
            times.record(ns, 1);
        }
        let totals = times.totals();
        let within = |bound_ns| {
            let index = BOUNDS_NS.iter().position(|&bound| bound == bound_ns);
            totals.within[index.unwrap()]
        };
        assert_eq!(within(1_000), 3);
        assert_eq!(within(2_500_000), 3);
        // Told apart to within 1 %: this one is as good as 5 ms.
        assert_eq!(within(5_000_000), 4);
        assert_eq!(within(10_000_000_000), 4);
        assert_eq!(totals.count, 5);
        assert_eq!(totals.sum_ns, 700_000_000_000 + 5_001_000 + 1_999);
    }

    #[test]
    fn a_reset_forgets_but_counters_go_on() {
        let mut profile = Profile::new(1);
        profile.record(Series::Request, 2_000);
        let before = profile.clone();
        profile.reset(9);
        assert_eq!(profile.since_ms, 9);
        let request = |profile: &Profile| {
            let found = profile
                .iter()
                .find(|(series, _)| *series == Series::Request);
            let (_, times) = found.unwrap();
            (times.histogram.len(), times.totals())
        };
        assert_eq!(request(&profile).0, 0);
        assert_eq!(request(&profile).1, request(&before).1);
        profile.record(Series::Request, 3_000);
        let (len, totals) = request(&profile);
        assert_eq!((len, totals.count, totals.sum_ns), (1, 2, 5_000));
    }

    #[test]
    fn cores_add_up() {
        let mut all = Profile::new(5);
        let mut other = Profile::new(4);
        all.record(Series::SseDelivery, 10);
        other.record(Series::SseDelivery, 20);
        all.add(&other);
        let (_, times) = all.iter().find(|(s, _)| *s == Series::SseDelivery).unwrap();
        assert_eq!((times.histogram.len(), times.sum_ns), (2, 30));
        assert_eq!(all.since_ms, 4);
    }
}
