//! Two runs side by side: which figures are compared, and what makes a comparison doubtful.

use super::Report;
use super::table::number;

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Operation and quantity, with its unit.
    pub name: String,
    /// Of the first run.
    pub a: f64,
    /// Of the second.
    pub b: f64,
}

impl Figure {
    /// The first over the second; not finite if the second is 0.
    pub fn ratio(&self) -> f64 {
        self.a / self.b
    }
}

/// The figures both runs have.
pub fn figures(a: &Report, b: &Report) -> Vec<Figure> {
    let mut list = Vec::new();
    let mut add = |name: String, a: f64, b: f64| list.push(Figure { name, a, b });
    for one in &a.operations {
        let Some(other) = b.operation(&one.name) else {
            continue;
        };
        let (of_a, of_b) = (&one.latency_us, &other.latency_us);
        add(format!("{} per s", one.name), one.per_s, other.per_s);
        add(
            format!("{} MB/s", one.name),
            one.bytes_per_s / 1e6,
            other.bytes_per_s / 1e6,
        );
        add(
            format!("{} p50 ms", one.name),
            of_a.p50 / 1e3,
            of_b.p50 / 1e3,
        );
        add(
            format!("{} p99 ms", one.name),
            of_a.p99 / 1e3,
            of_b.p99 / 1e3,
        );
        add(
            format!("{} p99.9 ms", one.name),
            of_a.p999 / 1e3,
            of_b.p999 / 1e3,
        );
        add(
            format!("{} max ms", one.name),
            of_a.max / 1e3,
            of_b.max / 1e3,
        );
    }
    add(
        "client CPU µs per operation".into(),
        a.client.cpu_us_per_operation,
        b.client.cpu_us_per_operation,
    );
    if let (Some(of_a), Some(of_b)) = (&a.server, &b.server) {
        add(
            "server CPU µs per operation".into(),
            of_a.cpu_us_per_operation,
            of_b.cpu_us_per_operation,
        );
    }
    list
}

/// Reasons not to compare these runs without care.
pub fn doubts(a: &Report, b: &Report) -> Vec<String> {
    let mut list = Vec::new();
    for (name, report) in [("A", a), ("B", b)] {
        if !report.valid {
            list.push(format!(
                "{name} is not valid: {}",
                report.invalid_because.join("; ")
            ));
        }
        list.extend(
            report
                .warnings
                .iter()
                .map(|warning| format!("{name}: {warning}")),
        );
    }
    let of = |report: &Report| {
        let mut parameters = report.parameters.clone();
        // These are meant to differ.
        parameters.url.clear();
        parameters.target.clear();
        parameters.seed = 0;
        parameters
    };
    if of(a) != of(b) {
        list.push("the workloads differ".into());
    }
    if a.machine != b.machine {
        list.push("the machines differ".into());
    }
    list
}

/// The comparison as text.
pub fn table(a: &Report, b: &Report) -> String {
    let mut out = format!(
        "A: {}\nB: {}\n\n{:<32}{:>14}{:>14}{:>9}\n",
        a.title(),
        b.title(),
        "",
        "A",
        "B",
        "A/B"
    );
    for figure in figures(a, b) {
        let ratio = if figure.ratio().is_finite() {
            format!("{:.3}", figure.ratio())
        } else {
            "-".into()
        };
        out.push_str(&format!(
            "{:<32}{:>14}{:>14}{ratio:>9}\n",
            figure.name,
            precise(figure.a),
            precise(figure.b)
        ));
    }
    for doubt in doubts(a, b) {
        out.push_str(&format!("note: {doubt}\n"));
    }
    out
}

/// A figure with enough digits to compare.
pub fn precise(value: f64) -> String {
    if value.abs() < 100.0 {
        format!("{value:.3}")
    } else {
        number(value)
    }
}
