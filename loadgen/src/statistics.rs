//! Ratios of paired measurements with confidence intervals.
//!
//! Each round of `versus` measures both servers back to back, so what disturbs the machine disturbs both; the ratio within a round
//! is steadier than either figure. Ratios are averaged as logarithms (the mean of 2 and 1/2 is 1), and the interval is Student's t
//! over the rounds: exact if the log ratios are normal, and wide, as it should be, when there are few rounds.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The interval covers the true ratio with this probability.
pub const CONFIDENCE: f64 = 0.95;

/// A mean ratio and the interval around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    /// Whether the interval excludes 1: the two differ by more than chance explains.
    pub fn is_significant(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// The ratio a/b over paired measurements; `None` for fewer than two pairs or for values that have no ratio.
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    if logs.len() < 2 || logs.iter().any(|log| !log.is_finite()) {
        return None;
    }
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let student = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
    let half = student.inverse_cdf(0.5 + CONFIDENCE / 2.0) * (variance / count).sqrt();
    Some(Ratio {
        mean: mean.exp(),
        low: (mean - half).exp(),
        high: (mean + half).exp(),
    })
}

#[cfg(test)]
mod tests {
    use super::ratio;

    #[test]
    fn the_interval_is_students() {
        // Logs 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, t(0.975, 2) = 4.3027.
        let pairs: Vec<(f64, f64)> = [0.1f64, 0.2, 0.3]
            .iter()
            .map(|log| (log.exp(), 1.0))
            .collect();
        let found = ratio(&pairs).expect("a ratio");
        let half = 4.302_65 * 0.1 / 3f64.sqrt();
        assert!((found.mean.ln() - 0.2).abs() < 1e-9);
        assert!(
            (found.high.ln() - 0.2 - half).abs() < 1e-4
                && (found.low.ln() - 0.2 + half).abs() < 1e-4
        );
        assert!(!found.is_significant());
    }

    #[test]
    fn what_has_no_ratio_gives_none() {
        assert_eq!(ratio(&[(1.0, 2.0)]), None);
        assert_eq!(ratio(&[(1.0, 0.0), (1.0, 1.0)]), None);
        assert_eq!(ratio(&[(0.0, 1.0), (1.0, 1.0)]), None);
    }
}
