//! The house rules that a compiler does not know: which layer may import
//! which, where glommio and unsafe code may appear, and what the top level
//! holds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The layers, each of which may import those before it.
const LAYERS: [&str; 7] = [
    "base", "json", "protocol", "storage", "shard", "http", "server",
];
/// Below this nobody waits, reads a clock or opens a socket.
const GLOMMIO: [&str; 2] = ["src/storage/disk", "src/server"];
const UNSAFE: [&str; 2] = ["src/storage/disk", "src/json/scan"];
const TOP_LEVEL: [&str; 9] = [
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "benches",
    "loadgen",
    "src",
    "tests",
    "tuning",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &str) -> Vec<(String, String)> {
    fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(&root().join(dir), &mut files);
    files
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(root())
                .expect("below the root")
                .to_string_lossy();
            (
                name.into_owned(),
                fs::read_to_string(&path).expect("a text"),
            )
        })
        .collect()
}

/// The part of a file that is not its tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text)
}

fn is_test(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

#[test]
fn layers_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (layer, place) in LAYERS.iter().zip(0..) {
        for (name, text) in sources(&format!("src/{layer}")) {
            if is_test(&name) {
                continue;
            }
            for (index, above) in LAYERS.iter().enumerate() {
                // `use crate::{…}` trees list layers at the first level of indentation.
                let direct = format!("crate::{above}::");
                let nested = format!("\n    {above}::");
                let imports = code(&text)
                    .lines()
                    .any(|line| !line.trim_start().starts_with("//") && line.contains(&direct))
                    || (code(&text).contains("use crate::{") && code(&text).contains(&nested));
                if index > place && imports {
                    wrong.push(format!("{name} imports {above}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn glommio_and_unsafe_code_stay_where_they_belong() {
    for (name, text) in sources("src") {
        let lines = || {
            code(&text)
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
        };
        let uses_glommio = lines().any(|line| line.contains("glommio::"));
        if uses_glommio && !is_test(&name) {
            assert!(
                GLOMMIO.iter().any(|place| name.starts_with(place)),
                "{name} uses glommio"
            );
        }
        let has_unsafe = lines().any(|line| {
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl")
        });
        if has_unsafe {
            assert!(
                UNSAFE.iter().any(|place| name.starts_with(place)),
                "{name} has unsafe code"
            );
        }
    }
}

#[test]
fn the_load_generator_shares_no_code_with_the_server() {
    let manifest = fs::read_to_string(root().join("loadgen/Cargo.toml")).expect("its manifest");
    assert!(
        !manifest.contains("thalweg"),
        "loadgen depends on the server"
    );
}

#[test]
fn the_top_level_holds_what_was_agreed() {
    let listed = Command::new("git")
        .args(["ls-tree", "--name-only", "HEAD"])
        .current_dir(root())
        .output();
    let Ok(listed) = listed else {
        println!("skipped: git is not installed");
        return;
    };
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let agreed = TOP_LEVEL.contains(&name) || name.starts_with('.');
        assert!(agreed, "{name} at the top level");
    }
}
