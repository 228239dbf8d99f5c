//! The profile as others read it: JSON for people and programs, the text
//! format for Prometheus.

use std::{fmt::Write as _, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use serde_json::{Map, Value, json};

use super::{
    profile::{BOUNDS_NS, Profile, Series, Times, Totals},
    slow::micros,
    stopwatch::Stage,
};

/// Where the steps of a curve begin, in nanoseconds.
const STEP_NS_MIN: u64 = 1_000;
/// How much longer each step of a curve is than the one before.
const STEP_RATIO: f64 = 1.1;

/// What beside the percentiles goes into the JSON form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Each histogram, whole.
    pub hdr: bool,
    /// The histograms over all shards in steps, so that two answers can be subtracted.
    pub steps: bool,
}

/// One shard's series, or those of all together, as JSON.
///
/// # Errors
/// When a histogram cannot be written; none is known.
pub fn series_json(profile: &Profile, detail: Detail) -> Result<Value, String> {
    let mut all = Map::new();
    for (series, times) in profile.iter() {
        all.insert(series.name().to_owned(), times_json(times, detail)?);
    }
    Ok(Value::Object(all))
}

/// What each series means, by name.
#[must_use]
pub fn meanings_json() -> Value {
    Series::all()
        .map(|series| (series.name().to_owned(), Value::from(series.help())))
        .collect::<Map<_, _>>()
        .into()
}

#[expect(clippy::cast_precision_loss, reason = "a mean is not exact anyway")]
#[expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON object lacks is made where it is assigned"
)]
fn times_json(times: &Times, detail: Detail) -> Result<Value, String> {
    let histogram = &times.histogram;
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    let count = histogram.len();
    let mean_us = match count {
        0 => 0.0,
        _ => times.sum_ns as f64 / count as f64 / 1_000.0,
    };
    let mut json = json!({
        "count": count,
        "mean_us": round(mean_us),
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "p99_9_us": at(0.999),
        "max_us": micros(histogram.max()),
    });
    if detail.hdr {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram, &mut bytes)
            .map_err(|error| format!("{error:?}"))?;
        json["hdr_ns"] = STANDARD.encode(bytes).into();
    }
    if detail.steps {
        let steps: Vec<(f64, u64)> = histogram
            .iter_log(STEP_NS_MIN, STEP_RATIO)
            .filter(|step| step.count_since_last_iteration() > 0)
            .map(|step| {
                let until_us = micros(step.value_iterated_to());
                (until_us, step.count_since_last_iteration())
            })
            .collect();
        json["steps_us"] = json!(steps);
    }
    Ok(json)
}

fn round(us: f64) -> f64 {
    (us * 1_000.0).round() / 1_000.0
}

/// A family of the text format: its name, its meaning, and what is in it.
struct Family {
    name: &'static str,
    help: &'static str,
    series: fn(Series) -> Option<&'static str>,
    label: &'static str,
}

const FAMILIES: [Family; 4] = [
    Family {
        name: "thalweg_request_stage_seconds",
        help: "Time of requests in each stage, in seconds, by the shard that has the connection; \
               stage wait is the client's time and the only one not in thalweg_request_seconds.",
        series: |series| match series {
            Series::Stage(stage) => Some(Stage::name(stage)),
            _ => None,
        },
        label: "stage",
    },
    Family {
        name: "thalweg_request_seconds",
        help: "Time of whole requests in the server, in seconds, by the shard that has the connection.",
        series: |series| matches!(series, Series::Request).then_some(""),
        label: "",
    },
    Family {
        name: "thalweg_delivery_seconds",
        help: "From new data being readable until it is written to a reader that waited, in seconds.",
        series: |series| match series {
            Series::LongPollDelivery => Some("long-poll"),
            Series::SseDelivery => Some("sse"),
            _ => None,
        },
        label: "live",
    },
    Family {
        name: "thalweg_journal_batch_seconds",
        help: "From the issue of a batch until it is durable, in seconds, by the shard whose journal it is.",
        series: |series| matches!(series, Series::JournalBatch).then_some(""),
        label: "",
    },
];

/// Every shard's profile in the Prometheus text format, as histograms.
#[must_use]
pub fn prometheus(shards: &[Arc<Profile>]) -> String {
    let mut text = String::new();
    for family in &FAMILIES {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(text, "# TYPE {} histogram", family.name);
        for (shard, profile) in shards.iter().enumerate() {
            for (series, times) in profile.iter() {
                let Some(value) = (family.series)(series) else {
                    continue;
                };
                let mut labels = format!("shard=\"{shard}\"");
                if !family.label.is_empty() {
                    let _ = write!(labels, ",{}=\"{value}\"", family.label);
                }
                histogram(&mut text, family.name, &labels, &times.totals());
            }
        }
    }
    text
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exact to the nanosecond for 104 days"
)]
fn histogram(text: &mut String, name: &str, labels: &str, totals: &Totals) {
    for (bound_ns, count) in BOUNDS_NS.into_iter().zip(totals.within) {
        let bound_s = bound_ns as f64 / 1e9;
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound_s}\"}} {count}");
    }
    let count = totals.count;
    let sum_s = totals.sum_ns as f64 / 1e9;
    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "{name}_sum{{{labels}}} {sum_s}");
    let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::{Histogram, serialization::Deserializer};

    fn profile() -> Profile {
        let mut profile = Profile::new(0);
        for us in 1..=1_000 {
            profile.record(Series::Request, us * 1_000);
        }
        profile
    }

    #[test]
    fn percentiles_and_the_histogram_they_are_of() {
        let detail = Detail {
            hdr: true,
            steps: true,
        };
        let json = series_json(&profile(), detail).unwrap();
        let request = &json["request"];
        assert_eq!(request["count"], 1_000);
        assert_eq!(request["mean_us"], 500.5);
        for (name, us) in [
            ("p50_us", 500.0),
            ("p90_us", 900.0),
            ("p99_us", 990.0),
            ("p99_9_us", 999.0),
            ("max_us", 1_000.0),
        ] {
            let got = request[name].as_f64().unwrap();
            assert!((got - us).abs() < us * 0.01, "{name} is {got}");
        }
        let hdr = STANDARD
            .decode(request["hdr_ns"].as_str().unwrap())
            .unwrap();
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut hdr.as_slice())
            .unwrap();
        assert_eq!(read.len(), 1_000);
        assert!(read.max().abs_diff(1_000_000) < 10_000);
        let steps = request["steps_us"].as_array().unwrap();
        let counted: u64 = steps.iter().map(|step| step[1].as_u64().unwrap()).sum();
        assert_eq!(counted, 1_000);
        assert_eq!(json["head"]["count"], 0);
        assert_eq!(json.as_object().unwrap().len(), Series::COUNT);
        let bare = Detail {
            hdr: false,
            steps: false,
        };
        let bare = series_json(&profile(), bare).unwrap();
        assert!(bare["request"].get("hdr_ns").is_none());
    }

    #[test]
    fn the_text_format_has_every_series_of_every_shard() {
        let text = prometheus(&[Arc::new(profile()), Arc::new(Profile::new(0))]);
        for line in [
            "thalweg_request_seconds_bucket{shard=\"0\",le=\"0.000001\"} 1\n",
            "thalweg_request_seconds_bucket{shard=\"0\",le=\"+Inf\"} 1000\n",
            "thalweg_request_seconds_sum{shard=\"0\"} 0.5005\n",
            "thalweg_request_seconds_count{shard=\"1\"} 0\n",
            "thalweg_request_stage_seconds_count{shard=\"1\",stage=\"journal\"} 0\n",
            "thalweg_delivery_seconds_count{shard=\"0\",live=\"sse\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        // Values are kept to within 1 %, and so is where a bucket ends.
        let half = "thalweg_request_seconds_bucket{shard=\"0\",le=\"0.0005\"} ";
        let half = text.lines().find_map(|line| line.strip_prefix(half));
        let half: u64 = half.unwrap().parse().unwrap();
        assert!(half.abs_diff(500) <= 5, "{half}");
        let counts = text.lines().filter(|line| line.contains("_count{"));
        assert_eq!(counts.count(), 2 * Series::COUNT);
    }
}
