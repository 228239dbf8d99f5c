//! How far a command is, for a person at a terminal: on stderr, and nothing
//! when that is none.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a line without a count moves, so that it does not look dead.
const TICK: Duration = Duration::from_millis(200);

/// What a line with every figure takes.
const WIDE_COLUMNS: u16 = 78;

/// One line.
pub struct Progress(ProgressBar);

impl Progress {
    /// `what` is done with `bytes`.
    #[must_use]
    pub fn new(what: &'static str, bytes: u64) -> Self {
        let style = if columns() < WIDE_COLUMNS {
            "{msg} {percent} %, {eta} left"
        } else {
            "{msg} {bytes} of {total_bytes} ({percent} %), {bytes_per_sec}, {eta} left"
        };
        let bar = ProgressBar::new(bytes).with_message(what);
        Self(styled(bar, style))
    }

    /// `what` is done, and nobody knows how long it takes.
    #[must_use]
    pub fn waiting(what: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what);
        bar.enable_steady_tick(TICK);
        Self(styled(bar, "{msg} {spinner} {elapsed}"))
    }

    /// `bytes` more are done.
    pub fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// All is done: the line goes.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// So it does when something fails: what is said then begins a line.
impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Columns of the terminal, if it is one and says so.
fn columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map_or(0, |size| size.ws_col)
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
