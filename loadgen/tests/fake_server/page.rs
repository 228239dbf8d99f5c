//! The page in a real browser: it opens offline, all plots are there, and nothing is wider than the screen.
//!
//! Ignored by default because it needs Chromium (`apt-get install chromium`): `cargo test -p loadgen -- --ignored`.

use std::path::Path;
use std::process::Command;

use loadgen::report::html;

use crate::run_line;
use crate::server::{Wrong, start};

/// Added for the test only: says what the browser made of the page.
const PROBE: &str = "<script>
const plots = [...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0);
const text = plots.flatMap(svg => [...svg.querySelectorAll('text')]);
const colour = getComputedStyle(text[0]).fill;
const smallest = Math.min(...text.map(label => label.getBoundingClientRect().height));
document.body.innerHTML = `probe ${plots.length} ${document.documentElement.scrollWidth <= innerWidth} ${smallest >= 9} ${colour}`;
</script>";

fn probe(page: &Path, width: u32, dark: bool) -> String {
    let output = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},900"))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            if dark { 0 } else { 1 }
        ))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium runs");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = dom
        .find("probe ")
        .unwrap_or_else(|| panic!("the page did not load: {dom}"));
    dom[at..].split('<').next().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs Chromium"]
fn pages_fit_every_screen_in_light_and_dark() {
    let url = format!("http://{}", start(Wrong::Nothing));
    let line = format!(
        "append --url {url} --streams 4 --connections 2 --rate 200 --duration 1s --warmup 100ms"
    );
    let (a, b) = (run_line(&line), run_line(&line));
    let directory = std::env::temp_dir().join(format!("loadgen-page-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    for (name, page) in [("one", html::page(&a)), ("two", html::compare_page(&a, &b))] {
        assert!(
            !page.contains("src=") && !page.contains("href=") && !page.contains("url("),
            "{name} loads something"
        );
        let path = directory.join(format!("{name}.html"));
        std::fs::write(&path, page.replace("</html>", &format!("{PROBE}</html>")))
            .expect("written");
        let mut colours = Vec::new();
        for (width, dark) in [(1000, false), (1000, true), (500, false), (500, true)] {
            let found = probe(&path, width, dark);
            let expected = "probe 4 true true ";
            let colour = found.strip_prefix(expected);
            colours.push(
                colour
                    .unwrap_or_else(|| panic!("{name} at {width}: {found}"))
                    .to_owned(),
            );
        }
        assert_ne!(colours[0], colours[1], "{name}: dark looks like light");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}
