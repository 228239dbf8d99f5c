//! Reports to and from JSON files, and histograms to and from text.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use super::{IntervalPoint, Operation, Percentiles, Report};
use crate::collect::Collected;
use crate::histogram::{Measured, Op};

/// A last interval shorter than this share of one says nothing.
const LAST_INTERVAL_MIN: f64 = 0.1;

/// Writes a value as JSON.
pub fn write(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Reads a report.
pub fn read(path: &Path) -> Result<Report, String> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text)
        .map_err(|error| format!("{}: not a result of loadgen: {error}", path.display()))
}

/// The report of one operation.
pub fn operation(
    op: Op,
    collected: &Collected,
    measured_s: f64,
    interval: Duration,
    started: SystemTime,
) -> Operation {
    let empty = Measured::default();
    let total = collected.total(op).unwrap_or(&empty);
    let interval_s = interval.as_secs_f64();
    let of_interval = |index: usize| {
        let ops = &collected.intervals[index].ops;
        ops.iter()
            .find(|entry| entry.0 == op)
            .map_or(&empty, |entry| &entry.1)
    };
    let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let points = (0..collected.intervals.len()).map(|index| {
        let measured = of_interval(index);
        // The last interval may be cut short by the end of measurement.
        let length_s = interval_s.min(measured_s - index as f64 * interval_s);
        IntervalPoint {
            at_s: index as f64 * interval_s,
            per_s: if length_s > 0.0 {
                measured.completed as f64 / length_s
            } else {
                0.0
            },
            p50_us: us(measured.latency.value_at_quantile(0.5)),
            p99_us: us(measured.latency.value_at_quantile(0.99)),
            max_us: us(measured.latency.max()),
        }
    });
    Operation {
        name: op.name().to_owned(),
        completed: total.completed,
        per_s: total.completed as f64 / measured_s,
        bytes_per_s: total.bytes as f64 / measured_s,
        latency_us: percentiles(&total.latency),
        histogram: encode(&total.latency),
        interval_log: interval_log(
            (0..collected.intervals.len()).map(|i| &of_interval(i).latency),
            interval,
            started,
        ),
        // What completes in the drain belongs to no interval of the measurement.
        intervals: points
            .take_while(|point| point.at_s + interval_s * LAST_INTERVAL_MIN < measured_s)
            .collect(),
    }
}

/// The percentiles of a histogram of nanoseconds, in microseconds.
pub fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    if histogram.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Percentiles {
        count: histogram.len(),
        min: histogram.min() as f64 / 1e3,
        mean: histogram.mean() / 1e3,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        p9999: at(0.9999),
        max: histogram.max() as f64 / 1e3,
    }
}

/// A histogram as V2-compressed base64.
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    // Writing to memory does not fail, and 64-bit counts below 2^63 always fit the format.
    match V2DeflateSerializer::new().serialize(histogram, &mut bytes) {
        Ok(_) => STANDARD.encode(bytes),
        Err(_) => String::new(),
    }
}

/// A histogram from V2-compressed base64.
pub fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

fn interval_log<'h>(
    histograms: impl Iterator<Item = &'h Histogram<u64>>,
    interval: Duration,
    started: SystemTime,
) -> String {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment("latencies in nanoseconds, Interval_Max in milliseconds")
        .with_max_value_divisor(1e6)
        .with_start_time(started)
        .with_base_time(started);
    // Writing to memory does not fail.
    if let Ok(mut log) = builder.begin_log_with(&mut text, &mut serializer) {
        for (index, histogram) in histograms.enumerate() {
            let _ = log.write_histogram(histogram, interval * index as u32, interval, None);
        }
    }
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::{decode, encode, interval_log, percentiles};
    use crate::histogram::new_histogram;

    #[test]
    fn histograms_survive_as_text() {
        let mut histogram = new_histogram();
        for value in 1..10_000u64 {
            histogram.saturating_record(value * 1000);
        }
        let back = decode(&encode(&histogram)).expect("decodes");
        assert_eq!(percentiles(&back), percentiles(&histogram));
        assert!(decode("nonsense").is_none());
        let log = interval_log(
            [&histogram, &histogram].into_iter(),
            Duration::from_secs(1),
            SystemTime::now(),
        );
        let entries = IntervalLogIterator::new(log.as_bytes())
            .filter(|entry| matches!(entry, Ok(LogEntry::Interval(_))))
            .count();
        assert_eq!(entries, 2);
    }
}
