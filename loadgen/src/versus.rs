//! Two servers, one workload, in turn: ratios that a drifting machine cannot fake.
//!
//! Each round runs the workload on both, A first in even rounds and B first in odd ones, so that a drift in one direction cancels.
//! The ratios of all rounds give a mean and a confidence interval (`statistics`).

use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, VersusArgs};
use crate::plan::{self, RunError};
use crate::report::compare::{self, precise};
use crate::report::{Report, json};
use crate::statistics::{self, Ratio};

/// All rounds and what they come to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Versus {
    /// Each round: A's run, B's run.
    pub rounds: Vec<(Report, Report)>,
    /// The figures compared.
    pub ratios: Vec<Compared>,
}

/// One figure over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// Operation and quantity, with its unit.
    pub name: String,
    /// A's figure in each round.
    pub a: Vec<f64>,
    /// B's.
    pub b: Vec<f64>,
    /// A over B; none if some round has no ratio.
    pub ratio: Option<Ratio>,
}

impl Versus {
    /// Whether every run was valid.
    pub fn valid(&self) -> bool {
        self.rounds.iter().all(|(a, b)| a.valid && b.valid)
    }
}

/// Runs all rounds.
pub fn run(args: &VersusArgs) -> Result<Versus, RunError> {
    let mut rounds: Vec<(Report, Report)> = Vec::new();
    for round in 0..args.rounds {
        let a_first = round % 2 == 0;
        let first = one(args, a_first, round)?;
        let second = one(args, !a_first, round)?;
        rounds.push(if a_first {
            (first, second)
        } else {
            (second, first)
        });
    }
    let ratios = compared(&rounds);
    Ok(Versus { rounds, ratios })
}

/// Runs the workload once, on A or on B.
fn one(args: &VersusArgs, on_a: bool, round: u32) -> Result<Report, RunError> {
    let workload = args.workload.clone();
    let typed = workload.args();
    let (url, target, raw_post, pid) = if on_a {
        (&args.a, args.a_target, &args.a_raw_post, args.a_pid)
    } else {
        (&args.b, args.b_target, &args.b_raw_post, args.b_pid)
    };
    let run = RunArgs {
        url: url.clone(),
        target: target.unwrap_or(typed.target),
        raw_post: raw_post.clone().or_else(|| typed.raw_post.clone()),
        server_pid: pid.or(typed.server_pid),
        // One profile says nothing of two servers.
        server_latency: None,
        label: format!("{} {}", if on_a { "A" } else { "B" }, url),
        ..typed.clone()
    };
    let report = plan::run(&workload, &run)?;
    if !typed.quiet {
        eprintln!("{}", progress_line(&report, round, args.rounds));
    }
    Ok(report)
}

fn progress_line(report: &Report, round: u32, rounds: u32) -> String {
    let figures = report.main_operation().map_or(String::new(), |operation| {
        let p99_ms = operation.latency_us.p99 / 1e3;
        format!(
            "{} {}/s, p99 {p99_ms:.3} ms",
            operation.name,
            precise(operation.per_s)
        )
    });
    let valid = if report.valid {
        String::new()
    } else {
        format!("  NOT VALID: {}", report.invalid_because.join("; "))
    };
    format!(
        "round {} of {rounds}  {}  {figures}{valid}",
        round + 1,
        report.label
    )
}

fn compared(rounds: &[(Report, Report)]) -> Vec<Compared> {
    let Some((a, b)) = rounds.first() else {
        return Vec::new();
    };
    let by_round: Vec<_> = rounds.iter().map(|(a, b)| compare::figures(a, b)).collect();
    compare::figures(a, b)
        .into_iter()
        .filter_map(|figure| {
            let pairs: Option<Vec<(f64, f64)>> = by_round
                .iter()
                .map(|figures| {
                    figures
                        .iter()
                        .find(|other| other.name == figure.name)
                        .map(|f| (f.a, f.b))
                })
                .collect();
            let pairs = pairs?;
            let (a, b) = pairs.iter().copied().unzip();
            Some(Compared {
                name: figure.name,
                a,
                b,
                ratio: statistics::ratio(&pairs),
            })
        })
        .collect()
}

/// The result as text.
pub fn table(versus: &Versus) -> String {
    let mut out = String::new();
    if let Some((a, b)) = versus.rounds.first() {
        out.push_str(&format!("A: {}\nB: {}\n", a.title(), b.title()));
    }
    let rounds = versus.rounds.len();
    out.push_str(&format!(
        "{rounds} rounds; medians, and the ratio A/B with its 95 % interval (* differs from 1)\n\n{:<32}{:>14}{:>14}{:>9}  {}\n",
        "", "A", "B", "A/B", "95 % interval"
    ));
    for figure in &versus.ratios {
        let ratio = figure.ratio.map_or("        -".to_owned(), |ratio| {
            let mark = if ratio.is_significant() { " *" } else { "" };
            format!(
                "{:>9.3}  {:.3} to {:.3}{mark}",
                ratio.mean, ratio.low, ratio.high
            )
        });
        let (a, b) = (median(&figure.a), median(&figure.b));
        out.push_str(&format!(
            "{:<32}{:>14}{:>14}{ratio}\n",
            figure.name,
            precise(a),
            precise(b)
        ));
    }
    let mut doubts: Vec<String> = versus
        .rounds
        .iter()
        .flat_map(|(a, b)| compare::doubts(a, b))
        .collect();
    doubts.sort();
    doubts.dedup();
    for doubt in doubts {
        out.push_str(&format!("note: {doubt}\n"));
    }
    out
}

/// The middle value, or the mean of the middle two; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The subcommand: runs, prints, saves; whether every run was valid.
pub fn command(args: &VersusArgs) -> Result<bool, String> {
    crate::check_writable(args.json.as_deref())?;
    crate::check_writable(args.html.as_deref())?;
    let versus = run(args).map_err(|error| error.to_string())?;
    print!("{}", table(&versus));
    let failed =
        |path: &std::path::Path, error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(path) = &args.json {
        json::write(path, &versus).map_err(|error| failed(path, error))?;
    }
    if let Some(path) = &args.html {
        let page = crate::report::html::versus_page(&versus);
        std::fs::write(path, page).map_err(|error| failed(path, error))?;
    }
    Ok(versus.valid())
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
