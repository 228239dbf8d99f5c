//! Reports as text for a terminal.

use std::fmt::Write;

use super::Report;

/// The summary of one run.
pub fn summary(report: &Report) -> String {
    let mut out = String::new();
    let parameters = &report.parameters;
    let mode = parameters
        .rate_per_s
        .map_or("saturation".to_owned(), |rate| format!("{rate} requests/s"));
    line(&mut out, &report.title());
    line(
        &mut out,
        &format!(
            "{} streams, {} connections, {} followers, {} B {}, {mode}, {:.1} s measured",
            parameters.streams,
            parameters.connections,
            parameters.followers,
            parameters.payload_bytes,
            parameters.content_type,
            report.measured_s
        ),
    );
    out.push('\n');
    line(
        &mut out,
        &format!(
            "{:<17}{:>11}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "latency in ms", "per s", "MB/s", "p50", "p90", "p99", "p99.9", "max"
        ),
    );
    for operation in &report.operations {
        let latency = &operation.latency_us;
        let ms = |us: f64| format!("{:.3}", us / 1e3);
        line(
            &mut out,
            &format!(
                "{:<17}{:>11}{:>10.1}{:>10}{:>10}{:>10}{:>10}{:>10}",
                operation.name,
                number(operation.per_s),
                operation.bytes_per_s / 1e6,
                ms(latency.p50),
                ms(latency.p90),
                ms(latency.p99),
                ms(latency.p999),
                ms(latency.max)
            ),
        );
    }
    server_latency(&mut out, report);
    out.push('\n');
    let client = &report.client;
    line(
        &mut out,
        &format!(
            "client CPU by thread  {}; {:.2} µs an operation",
            client.cpu_shares(),
            client.cpu_us_per_operation
        ),
    );
    if let Some(server) = &report.server {
        line(
            &mut out,
            &format!(
                "server CPU            {:.2} cores; {:.2} µs an operation",
                server.cpu_cores, server.cpu_us_per_operation
            ),
        );
    }
    if client.planned > 0 {
        line(
            &mut out,
            &format!(
                "schedule              {} planned, {} never sent; own lateness p99 {:.3} ms, max {:.3} ms",
                client.planned,
                client.unsent,
                client.lag_us.p99 / 1e3,
                client.lag_us.max / 1e3
            ),
        );
    }
    let verification = &report.verification;
    line(
        &mut out,
        &format!(
            "verified              {} messages read, {} acknowledged, {} faults{}",
            verification.messages_checked,
            verification.messages_acknowledged,
            verification.faults,
            if verification.read_back {
                ", all streams read back"
            } else {
                ""
            }
        ),
    );
    let errors: Vec<String> = report
        .errors
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    line(
        &mut out,
        &format!(
            "errors                {}",
            if errors.is_empty() {
                "none".into()
            } else {
                errors.join(", ")
            }
        ),
    );
    for warning in &report.warnings {
        line(&mut out, &format!("warning: {warning}"));
    }
    for reason in &report.invalid_because {
        line(&mut out, &format!("NOT VALID: {reason}"));
    }
    out
}

/// The server's own profile, and what the client's figures have beyond it.
fn server_latency(out: &mut String, report: &Report) {
    let Some(server) = &report.server_latency else {
        return;
    };
    out.push('\n');
    let heads = ["mean", "p50", "p90", "p99", "p99.9", "max"];
    let cells = |first: &str, count: &str, rest: [String; 6]| {
        let rest: String = rest.iter().map(|cell| format!("{cell:>10}")).collect();
        format!("{first:<17}{count:>11}{rest}")
    };
    line(
        out,
        &cells("server, in ms", "count", heads.map(str::to_owned)),
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
        let times = times.map(|us| format!("{:.3}", us / 1e3));
        line(
            out,
            &cells(&series.name, &number(series.count as f64), times),
        );
    }
    if let Some((operation, p50, p99)) = report.beyond_server_us() {
        line(
            out,
            &format!(
                "{operation} less request: p50 {:+.3}, p99 {:+.3}: both kernels' TCP, sockets and wake-ups{}",
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
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

fn line(out: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_separated() {
        assert_eq!(super::number(1_234_567.4), "1,234,567");
        assert_eq!(super::number(999.9), "1,000");
        assert_eq!(super::number(12.34), "12.3");
    }
}
