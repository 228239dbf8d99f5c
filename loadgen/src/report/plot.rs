//! Plots of one or two runs, as SVG text.
//!
//! Colours are placeholders that the page's style sheet replaces (see [`STYLE`]), so that one plot serves light and dark. Every plot
//! is drawn twice, wide and narrow, and the style sheet shows the one that fits: text scaled down to a phone would not be legible.

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoDrawingArea,
    IntoFont, LineSeries, RGBColor, SVGBackend,
};

use super::json::decode;
use super::{IntervalPoint, Operation};

const TEXT: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const SERIES: [RGBColor; 2] = [RGBColor(3, 3, 3), RGBColor(4, 4, 4)];

/// Replaces the placeholder colours by the page's, and shows the size that fits.
pub const STYLE: &str = r##"
svg{max-width:100%;height:auto;display:block}
svg [fill="#010101"]{fill:var(--text)}
svg [stroke="#010101"]{stroke:var(--text)}
svg [stroke="#020202"]{stroke:var(--grid)}
svg [stroke="#030303"]{stroke:var(--a)}
svg [stroke="#040404"]{stroke:var(--b)}
.narrow{display:none}
@media(max-width:620px){.wide{display:none}.narrow{display:block}}
"##;

/// Width and height in pixels, and font size, of the wide and the narrow form.
const SIZES: [((u32, u32), u32); 2] = [((860, 300), 17), ((350, 270), 15)];
/// Bars of the distribution plot.
const BARS: usize = 60;
/// The right end of the percentile plot, in nines: 4 is 99.99 %.
const NINES_MAX: f64 = 4.0;

/// One plot: what it shows and its SVG in both sizes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows, with units.
    pub title: &'static str,
    /// SVG for wide screens.
    pub wide: String,
    /// SVG for narrow screens.
    pub narrow: String,
}

/// Points in order; one whose value is not a number interrupts the line.
type Series = Vec<(f64, f64)>;

/// The plots of one operation, of one run or of two overlaid. A plot without data is left out.
pub fn plots(runs: &[&Operation]) -> Vec<Plot> {
    let histograms: Vec<Option<Histogram<u64>>> =
        runs.iter().map(|run| decode(&run.histogram)).collect();
    let over_time = |value: fn(&IntervalPoint) -> f64| -> Vec<Series> {
        let points = |run: &&Operation| {
            run.intervals
                .iter()
                .map(|point| (point.at_s, value(point)))
                .collect()
        };
        runs.iter().map(points).collect()
    };
    let of_histograms = |make: fn(&Histogram<u64>) -> Series| -> Vec<Series> {
        let series =
            |histogram: &Option<Histogram<u64>>| histogram.as_ref().map(make).unwrap_or_default();
        histograms.iter().map(series).collect()
    };
    let seconds = "seconds since the start of measurement";
    let linear = [Scale::Linear, Scale::Linear];
    let list = [
        draw(
            "Throughput: completed per second",
            seconds,
            linear,
            &over_time(|point| point.per_s),
        ),
        draw(
            "Latency over time: 99th percentile of what was answered then, ms",
            seconds,
            linear,
            &over_time(|point| {
                // Where nothing was answered there is no latency, and least of all one of 0.
                if point.max_us > 0.0 {
                    point.p99_us / 1e3
                } else {
                    f64::NAN
                }
            }),
        ),
        draw(
            "Latency by percentile, ms",
            "share of requests that took no longer",
            [Scale::Nines, Scale::Log],
            &of_histograms(percentiles),
        ),
        draw(
            "Distribution of latency: % of all",
            "latency in ms",
            [Scale::Log, Scale::Linear],
            &of_histograms(distribution),
        ),
    ];
    list.into_iter().flatten().collect()
}

/// Points (percentile as a share, milliseconds).
fn percentiles(histogram: &Histogram<u64>) -> Series {
    (0..=200)
        .map(|step| 1.0 - 10f64.powf(-f64::from(step) / 200.0 * NINES_MAX))
        .map(|share| (share, histogram.value_at_quantile(share) as f64 / 1e6))
        .collect()
}

/// A staircase of points (milliseconds, percent of all).
fn distribution(histogram: &Histogram<u64>) -> Series {
    let total = histogram.len().max(1) as f64;
    let least = histogram.min().max(1) as f64 * 0.98;
    let most = (histogram.value_at_quantile(0.9999) as f64 * 1.02).max(least * 1.1);
    let edge = |bar: usize| least * (most / least).powf(bar as f64 / BARS as f64);
    let below = |value: f64| histogram.count_between(0, value as u64) as f64;
    let mut points = vec![(edge(0) / 1e6, 0.0)];
    for bar in 0..BARS {
        let (from, to) = (edge(bar), edge(bar + 1));
        let share = (below(to) - below(from)).max(0.0) / total * 100.0;
        points.extend([(from / 1e6, share), (to / 1e6, share)]);
    }
    points.push((edge(BARS) / 1e6, 0.0));
    points
}

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
    /// For percentiles as shares: 0.9 lies at 1, 0.99 at 2.
    Nines,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1e-6).log10(),
            Scale::Nines => -(1.0 - value).max(1e-9).log10(),
        }
    }

    /// The ends of the axis, as places, for values between `least` and `greatest`.
    fn range(self, least: f64, greatest: f64) -> (f64, f64) {
        match self {
            Scale::Linear => (0.0, greatest),
            Scale::Log => (self.place(least) - 0.03, self.place(greatest) + 0.03),
            Scale::Nines => (0.0, NINES_MAX),
        }
    }

    /// The places of the ticks between two places; about `wanted` of them.
    fn ticks(self, from: f64, to: f64, wanted: usize) -> Vec<f64> {
        let steps: Vec<f64> = match self {
            Scale::Linear => {
                let step = nice_step((to - from) / wanted as f64);
                (0..=1 + wanted * 3)
                    .map(|index| (from / step).ceil() * step + index as f64 * step)
                    .collect()
            }
            Scale::Log => {
                let within: &[f64] = if to - from < wanted as f64 / 3.0 {
                    &[1.0, 2.0, 5.0]
                } else {
                    &[1.0]
                };
                (from.floor() as i32..=to.ceil() as i32)
                    .flat_map(|decade| {
                        within
                            .iter()
                            .map(move |digit| f64::from(decade) + digit.log10())
                    })
                    .collect()
            }
            Scale::Nines => (0..=NINES_MAX as u32).map(f64::from).collect(),
        };
        steps
            .into_iter()
            .filter(|place| (from..=to).contains(place))
            .collect()
    }

    /// The value at a place.
    fn value(self, place: f64) -> f64 {
        match self {
            Scale::Linear => place,
            Scale::Log => 10f64.powf(place),
            Scale::Nines => 1.0 - 10f64.powf(-place),
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Scale::Linear | Scale::Log => tick(value),
            Scale::Nines => format!("{} %", tick(value * 100.0)),
        }
    }
}

/// One axis: a scale between two places, with its ticks.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, (least, greatest): (f64, f64), ticks_wanted: usize) -> Axis {
        let (from, to) = scale.range(least, greatest);
        Axis {
            scale,
            from,
            to,
            ticks: scale.ticks(from, to, ticks_wanted),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    /// Values as measured; the scale is applied here.
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (self.scale.place(*value) - self.from) / (self.to - self.from);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks
            .iter()
            .map(|place| self.scale.value(*place))
            .collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.scale.value(self.from)..self.scale.value(self.to)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.scale.label(*value)
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|nice| *nice >= step * 0.999)
        .unwrap_or(step)
}

/// A number as short as it can be told apart.
fn tick(value: f64) -> String {
    let rounded = (value * 1e4).round() / 1e4;
    match rounded.abs() {
        size if size >= 1e6 => format!("{}M", (rounded / 1e4).round() / 100.0),
        size if size >= 1e4 => format!("{}k", (rounded / 10.0).round() / 100.0),
        _ => format!("{rounded}"),
    }
}

fn draw(title: &'static str, x_label: &str, scales: [Scale; 2], series: &[Series]) -> Option<Plot> {
    let all = || series.iter().flatten().filter(|point| !point.1.is_nan());
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        all()
            .map(of)
            .fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
    };
    let (x, y) = (bounds(|point| point.0), bounds(|point| point.1));
    if x.1 <= x.0 || y.1 <= 0.0 {
        return None;
    }
    let mut svg = [String::new(), String::new()];
    for (out, (size, font)) in svg.iter_mut().zip(SIZES) {
        let area = SVGBackend::with_string(out, size).into_drawing_area();
        // Room above the highest point.
        let bounds = [x, (y.0, y.1 * 1.08)];
        chart(&area, x_label, scales, bounds, series, (size.0, font)).ok()?;
    }
    let [wide, narrow] = svg;
    Some(Plot {
        title,
        wide,
        narrow,
    })
}

fn chart<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    x_label: &str,
    [x_scale, y_scale]: [Scale; 2],
    [x, y]: [(f64, f64); 2],
    series: &[Series],
    (width, font): (u32, u32),
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let style = ("sans-serif", font).into_font().color(&TEXT);
    let x_axis = Axis::new(x_scale, x, width as usize / 80);
    let y_axis = Axis::new(y_scale, y, 6);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(font * 5 / 2)
        .x_label_area_size(font * 3)
        .y_label_area_size(font * 4)
        .build_cartesian_2d(x_axis, y_axis)?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(style.clone())
        .axis_desc_style(style)
        .x_desc(x_label)
        .draw()?;
    for (points, colour) in series.iter().zip(SERIES) {
        for line in points.split(|point| point.1.is_nan()) {
            chart.draw_series(LineSeries::new(
                line.iter().copied(),
                colour.stroke_width(2),
            ))?;
        }
    }
    area.present()
}

#[cfg(test)]
mod tests {
    use super::{Scale, nice_step, tick};

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Scale::Linear.ticks(0.0, 10.8, 5), [0.0, 5.0, 10.0]);
        assert_eq!(nice_step(0.3), 0.5);
        let decades = Scale::Log.ticks(-1.0, 3.0, 6);
        assert_eq!(decades, [-1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(Scale::Nines.ticks(0.0, 4.0, 3).len(), 5);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(Scale::Nines.label(Scale::Nines.value(3.0)), "99.9 %");
        assert_eq!(Scale::Log.label(0.1), "0.1");
        assert_eq!(tick(34_567.0), "34.57k");
        assert_eq!(tick(0.25), "0.25");
    }
}
