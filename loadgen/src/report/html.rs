//! One self-contained page: no scripts, no fonts, no requests; it opens offline, in light and dark, on a screen and on a phone.

use std::fmt::Write;

use super::compare::{doubts, figures, precise};
use super::plot::{self, plots};
use super::table::number;
use super::{Operation, Report};
use crate::versus::{Versus, median};

const STYLE: &str = r"
:root{--page:#fff;--text:#1d2430;--soft:#5a6575;--grid:#d9dee5;--card:#f5f7f9;--a:#0b62c4;--b:#c2500a;--good:#1a7f37;--bad:#c0262d;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--text:#e4e9f0;--soft:#9aa7b8;--grid:#333c48;--card:#1a2029;--a:#62a8ff;--b:#ffa05c;--good:#56d364;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:920px;padding:20px;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1.4rem 0 .2rem;font-weight:600}
p{margin:.4rem 0}.soft{color:var(--soft)}
.badge{display:inline-block;padding:.1rem .6rem;border-radius:1rem;border:1px solid currentColor;font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;min-width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.facts td{white-space:normal;text-align:left;overflow-wrap:anywhere}.facts td:first-child{color:var(--soft);width:11rem}
.key{display:inline-block;width:1.6rem;height:.25rem;border-radius:.2rem;vertical-align:middle;margin-right:.4rem}
.key.a{background:var(--a)}.key.b{background:var(--b)}
@media(max-width:620px){body{padding:14px;font-size:15px}th,td{padding:.25rem .3rem}th{white-space:normal;vertical-align:bottom}.facts td:first-child{width:6.5rem}}
code{background:var(--card);padding:.1rem .3rem;border-radius:.2rem;overflow-wrap:anywhere}
";

const VALID: &str = "The schedule was kept, at most 1 % of requests failed, and everything read was as it was written.";
const INVALID: &str = "The figures must not be used; the reasons stand below.";

/// The page of one run.
pub fn page(report: &Report) -> String {
    let mut out = open(&report.title());
    heading(&mut out, report);
    operations(&mut out, report);
    server_latency(&mut out, report);
    problems(&mut out, report);
    for operation in &report.operations {
        plot_section(&mut out, &operation.name, &[operation], "");
    }
    facts(&mut out, "How it was measured", report);
    close(out)
}

/// The page of two runs, overlaid.
pub fn compare_page(a: &Report, b: &Report) -> String {
    let mut out = open(&format!("{} and {}", a.title(), b.title()));
    legend(&mut out, a, b);
    let rows = figures(a, b).into_iter().map(|figure| {
        let ratio = if figure.ratio().is_finite() {
            format!("{:.3}", figure.ratio())
        } else {
            "–".into()
        };
        [figure.name, precise(figure.a), precise(figure.b), ratio]
    });
    rows_table(&mut out, ["", "A", "B", "A/B"], rows);
    let mut notes = doubts(a, b);
    if notes.is_empty() {
        notes.push(
            "One run each: the ratios carry no confidence interval; loadgen versus gives one."
                .into(),
        );
    }
    paragraphs(&mut out, "soft", &notes);
    overlaid(&mut out, a, b);
    facts(&mut out, "A", a);
    facts(&mut out, "B", b);
    close(out)
}

/// The page of alternating runs: the ratios, and the last round overlaid.
pub fn versus_page(versus: &Versus) -> String {
    let Some((a, b)) = versus.rounds.last() else {
        return close(open("No rounds"));
    };
    let mut out = open(&format!("{} and {}", a.title(), b.title()));
    legend(&mut out, a, b);
    let rounds = versus.rounds.len();
    paragraphs(
        &mut out,
        "soft",
        &[format!(
            "{rounds} alternating rounds. Medians; the ratio with its 95 % interval."
        )],
    );
    let rows = versus.ratios.iter().map(|figure| {
        let (ratio, interval) = match figure.ratio {
            Some(ratio) => (
                format!("{:.3}", ratio.mean),
                format!("{:.3} to {:.3}", ratio.low, ratio.high),
            ),
            None => ("–".into(), "–".into()),
        };
        [
            figure.name.clone(),
            precise(median(&figure.a)),
            precise(median(&figure.b)),
            ratio,
            interval,
        ]
    });
    rows_table(&mut out, ["", "A", "B", "A/B", "95 % interval"], rows);
    paragraphs(&mut out, "soft", &doubts(a, b));
    out.push_str("<p class=soft>The plots show the last round.</p>");
    overlaid(&mut out, a, b);
    facts(&mut out, "A", a);
    facts(&mut out, "B", b);
    close(out)
}

fn open(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{}</style><h1>{title}</h1>",
        plot::STYLE
    )
}

fn close(mut out: String) -> String {
    out.push_str("</html>\n");
    out
}

fn heading(out: &mut String, report: &Report) {
    let (class, word, meaning) = if report.valid {
        ("good", "valid", VALID)
    } else {
        ("bad", "not valid", INVALID)
    };
    let parameters = &report.parameters;
    let mode = match parameters.rate_per_s {
        Some(rate) => format!(
            "at a fixed rate of {} requests/s, latency from the time each was due",
            number(rate)
        ),
        None => "at saturation (closed loop)".to_owned(),
    };
    push(
        out,
        format_args!(
            "<p><span class=\"badge {class}\">{word}</span> <span class=soft>{meaning}</span></p><p>Workload {}: messages of {} B on {} streams over {} connections{}, {mode}, \
             measured for {:.0} s after {:.1} s of warm-up.</p>",
            escape(&parameters.workload),
            parameters.payload_bytes,
            number(f64::from(parameters.streams)).trim_end_matches(".0"),
            parameters.connections,
            if parameters.followers > 0 {
                format!(" with {} live readers", parameters.followers)
            } else {
                String::new()
            },
            report.measured_s,
            parameters.warmup_s
        ),
    );
}

fn operations(out: &mut String, report: &Report) {
    let ms = |us: f64| precise(us / 1e3);
    let rows = report.operations.iter().map(|operation| {
        let latency = &operation.latency_us;
        [
            operation.name.replace('_', " "),
            number(operation.per_s),
            format!("{:.1}", operation.bytes_per_s / 1e6),
            ms(latency.p50),
            ms(latency.p90),
            ms(latency.p99),
            ms(latency.p999),
            ms(latency.max),
        ]
    });
    rows_table(
        out,
        [
            "", "per s", "MB/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms",
        ],
        rows,
    );
}

fn server_latency(out: &mut String, report: &Report) {
    let Some(server) = &report.server_latency else {
        return;
    };
    out.push_str("<h2>The server's own view</h2>");
    let ms = |us: f64| precise(us / 1e3);
    let rows = server.series.iter().map(|series| {
        [
            series.name.replace('_', " "),
            number(series.count as f64)
                .trim_end_matches(".0")
                .to_owned(),
            ms(series.mean_us),
            ms(series.p50_us),
            ms(series.p90_us),
            ms(series.p99_us),
            ms(series.p999_us),
            ms(series.max_us),
        ]
    });
    let heads = [
        "latency in ms",
        "count",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    rows_table(out, heads, rows);
    let mut notes = vec![format!(
        "From {}, emptied when measurement began: request is the time of a request in the server, the other stages are parts of it.",
        server.url
    )];
    if let Some((operation, p50, p99)) = report.beyond_server_us() {
        notes.push(format!(
            "The client's {operation} has {} ms (p50) and {} ms (p99) beyond it: both kernels' TCP, the wait in sockets, and \
             wake-ups.",
            ms(p50),
            ms(p99)
        ));
    }
    paragraphs(out, "soft", &notes);
}

fn problems(out: &mut String, report: &Report) {
    paragraphs(out, "bad", &report.invalid_because);
    paragraphs(out, "soft", &report.warnings);
    let errors: Vec<String> = report
        .errors
        .iter()
        .map(|(kind, count)| format!("{kind}: {count}"))
        .collect();
    let errors = if errors.is_empty() {
        "none".to_owned()
    } else {
        errors.join(", ")
    };
    let verification = &report.verification;
    paragraphs(
        out,
        "soft",
        &[format!(
            "Errors: {errors}. Verified: {} messages read and checked, {} acknowledged, {} broken promises.",
            number(verification.messages_checked as f64),
            number(verification.messages_acknowledged as f64),
            verification.faults
        )],
    );
}

fn legend(out: &mut String, a: &Report, b: &Report) {
    for (class, name, report) in [("a", "A", a), ("b", "B", b)] {
        let title = escape(&report.title());
        push(
            out,
            format_args!("<p><span class=\"key {class}\"></span><b>{name}</b> {title}</p>"),
        );
    }
}

fn overlaid(out: &mut String, a: &Report, b: &Report) {
    let key = |class, name, report: &Report| {
        let title = escape(&report.title());
        format!("<span class=\"key {class}\"></span><b>{name}</b> {title} ")
    };
    let legend = format!("<p class=soft>{}{}</p>", key("a", "A", a), key("b", "B", b));
    for operation in &a.operations {
        if let Some(other) = b.operation(&operation.name) {
            plot_section(out, &operation.name, &[operation, other], &legend);
        }
    }
}

/// The plots of one operation; `legend`, which is HTML, stands by each.
fn plot_section(out: &mut String, name: &str, runs: &[&Operation], legend: &str) {
    push(
        out,
        format_args!("<h2>{}</h2>", escape(&name.replace('_', " "))),
    );
    for plot in plots(runs) {
        let title = plot.title;
        push(
            out,
            format_args!(
                "<h3>{title}</h3>{legend}<div class=wide role=img aria-label=\"{title}\">{}</div>\
                 <div class=narrow role=img aria-label=\"{title}\">{}</div>",
                plot.wide.trim(),
                plot.narrow.trim()
            ),
        );
    }
}

fn facts(out: &mut String, title: &str, report: &Report) {
    let parameters = &report.parameters;
    let client = &report.client;
    let machine = &report.machine;
    let mut rows = vec![
        (
            "server",
            format!("{} ({})", parameters.url, parameters.target),
        ),
        (
            "streams",
            format!("{}, {}", parameters.streams, parameters.content_type),
        ),
        (
            "appends",
            format!(
                "{} message(s) each, {} idempotent producers a stream",
                parameters.batch, parameters.producers
            ),
        ),
        (
            "client CPU by thread",
            format!(
                "{}; {:.2} µs per operation",
                client.cpu_shares(),
                client.cpu_us_per_operation
            ),
        ),
        ("kernel", machine.kernel.clone()),
        ("CPU", format!("{} × {}", machine.cpus, machine.cpu_model)),
        (
            "memory",
            format!(
                "{:.1} GiB",
                machine.memory_bytes as f64 / f64::from(1 << 30)
            ),
        ),
        ("disks", machine.disks.join(", ")),
        ("loadgen", format!("{} {}", report.loadgen, report.revision)),
        ("command", report.command.join(" ")),
    ];
    if let Some(server) = &report.server {
        let text = format!(
            "{:.2} cores; {:.2} µs per operation",
            server.cpu_cores, server.cpu_us_per_operation
        );
        rows.insert(4, ("server CPU", text));
    }
    if client.planned > 0 {
        let lag_ms = client.lag_us.p99 / 1e3;
        let text = format!(
            "{} planned, {} never sent; own lateness p99 {lag_ms:.3} ms",
            client.planned, client.unsent
        );
        rows.insert(3, ("schedule", text));
    }
    push(
        out,
        format_args!("<h2>{}</h2><table class=facts>", escape(title)),
    );
    for (name, value) in rows {
        push(out, format_args!("<tr><td>{name}<td>{}", escape(&value)));
    }
    out.push_str("</table>");
}

fn rows_table<const N: usize>(
    out: &mut String,
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    out.push_str("<div class=scroll><table><tr>");
    for head in heads {
        push(out, format_args!("<th>{}", escape(head)));
    }
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            push(out, format_args!("<td>{}", escape(&cell)));
        }
    }
    out.push_str("</table></div>");
}

fn paragraphs(out: &mut String, class: &str, texts: &[String]) {
    for text in texts {
        push(out, format_args!("<p class={class}>{}</p>", escape(text)));
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = out.write_fmt(text);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
