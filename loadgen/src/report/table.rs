//! Reports as text for a terminal.

use std::fmt::Write;

use super::Report;

/// The summary of one run, in lines of at most 80 columns but for what was typed.
pub fn summary(report: &Report) -> String {
    let mut out = String::new();
    let parameters = &report.parameters;
    let mode = parameters
        .rate_per_s
        .map_or("saturation".to_owned(), |rate| format!("{rate} requests/s"));
    line(&mut out, &report.title());
    let mut setting = format!(
        "{} streams, {} connections",
        count(parameters.streams.into()),
        count(parameters.connections.into())
    );
    if parameters.followers > 0 {
        setting += &format!(", {} followers", count(parameters.followers.into()));
    }
    line(&mut out, &setting);
    line(
        &mut out,
        &format!(
            "{} B {}, {mode}, {:.1} s measured",
            parameters.payload_bytes, parameters.content_type, report.measured_s
        ),
    );
    if !report.operations.is_empty() {
        out.push('\n');
        let heads = ["MB/s", "p50", "p90", "p99", "p99.9", "max"];
        line(
            &mut out,
            &row("latency in ms", "per s", heads.map(str::to_owned)),
        );
    }
    for operation in &report.operations {
        let latency = &operation.latency_us;
        let times = [
            format!("{:.1}", operation.bytes_per_s / 1e6),
            ms(latency.p50),
            ms(latency.p90),
            ms(latency.p99),
            ms(latency.p999),
            ms(latency.max),
        ];
        line(
            &mut out,
            &row(&operation.name, &number(operation.per_s), times),
        );
    }
    server_latency(&mut out, report);
    out.push('\n');
    let client = &report.client;
    let mut cpu = client.cpu_shares();
    if !report.operations.is_empty() {
        cpu += &format!("; {:.2} µs an operation", client.cpu_us_per_operation);
    }
    fact(&mut out, "client CPU", &cpu);
    if let Some(server) = &report.server {
        let text = format!(
            "{:.2} cores; {:.2} µs an operation",
            server.cpu_cores, server.cpu_us_per_operation
        );
        fact(&mut out, "server CPU", &text);
    }
    if client.planned > 0 {
        let (planned, unsent) = (count(client.planned), count(client.unsent));
        let text = format!("{planned} planned, {unsent} never sent");
        fact(&mut out, "schedule", &text);
        let (p99, max) = (ms(client.lag_us.p99), ms(client.lag_us.max));
        fact(
            &mut out,
            "own lateness",
            &format!("p99 {p99} ms, max {max} ms"),
        );
    }
    let verification = &report.verification;
    let text = format!(
        "{} messages read, {} acknowledged, {} faults",
        count(verification.messages_checked),
        count(verification.messages_acknowledged),
        count(verification.faults)
    );
    fact(&mut out, "verified", &text);
    if verification.read_back {
        fact(&mut out, "", "all streams read back");
    }
    let errors: Vec<String> = report
        .errors
        .iter()
        .map(|(kind, errors)| format!("{kind} {errors}"))
        .collect();
    let errors = if errors.is_empty() {
        "none".into()
    } else {
        errors.join(", ")
    };
    fact(&mut out, "errors", &errors);
    for warning in &report.warnings {
        line(&mut out, &format!("warning: {warning}"));
    }
    for reason in &report.invalid_because {
        line(&mut out, &format!("NOT VALID: {reason}"));
    }
    out
}

/// A row of figures: 78 columns.
fn row(first: &str, second: &str, rest: [String; 6]) -> String {
    let rest: String = rest.iter().map(|cell| format!("{cell:>8}")).collect();
    format!("{first:<18}{second:>12}{rest}")
}

fn fact(out: &mut String, name: &str, text: &str) {
    line(out, &format!("{name:<18}{text}"));
}

/// Microseconds in milliseconds, with four digits at least.
fn ms(us: f64) -> String {
    let ms = us / 1e3;
    let decimals = match ms {
        ms if ms < 9.9995 => 3,
        ms if ms < 99.995 => 2,
        ms if ms < 999.95 => 1,
        _ => 0,
    };
    format!("{ms:.decimals$}")
}

/// The server's own profile, and what the client's figures have beyond it.
fn server_latency(out: &mut String, report: &Report) {
    let Some(server) = &report.server_latency else {
        return;
    };
    out.push('\n');
    let heads = ["mean", "p50", "p90", "p99", "p99.9", "max"];
    line(
        out,
        &row("server, in ms", "count", heads.map(str::to_owned)),
    );
    for series in &server.series {
        let times = [
            series.mean_us,
            series.p50_us,
            series.p90_us,
            series.p99_us,
            series.p999_us,
            series.max_us,
        ];
        let name = &series.name;
        line(out, &row(name, &count(series.count), times.map(ms)));
    }
    if let Some((operation, p50, p99)) = report.beyond_server_us() {
        line(
            out,
            &format!(
                "{operation} less request: p50 {:+.3}, p99 {:+.3}\n\
                 (both kernels' TCP, sockets and wake-ups{})",
                p50 / 1e3,
                p99 / 1e3,
                if report.parameters.rate_per_s.is_some() {
                    ", and until it was sent"
                } else {
                    ""
                }
            ),
        );
    }
}

/// A count or rate with thousands separated.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let out = separated(&format!("{:.0}", value.abs()));
    if value < 0.0 { format!("-{out}") } else { out }
}

/// A count with thousands separated.
fn count(value: u64) -> String {
    separated(&value.to_string())
}

fn separated(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn line(out: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_have_four_digits_and_columns_hold_them() {
        for (us, shown) in [
            (0.0, "0.000"),
            (1_261.0, "1.261"),
            (9_999.6, "10.00"),
            (11_461.0, "11.46"),
            (999_960.0, "1000"),
            (60_000_000.0, "60000"),
        ] {
            assert_eq!(super::ms(us), shown);
        }
        let widest = ["10000.0", "60000", "60000", "60000", "60000", "60000"];
        let row = super::row("long_poll_delivery", "1,234,567", widest.map(str::to_owned));
        assert_eq!((row.len(), row.split_whitespace().count()), (78, 8));
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(super::number(1_234_567.4), "1,234,567");
        assert_eq!(super::number(999.9), "1,000");
        assert_eq!(super::number(12.34), "12.3");
    }
}
