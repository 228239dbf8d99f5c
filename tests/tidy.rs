//! The house rules that a compiler does not know: which layer may import
//! which, where glommio and unsafe code may appear, what the top level holds,
//! and what may come in with a dependency.

use std::{
    collections::{BTreeMap, BTreeSet},
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
fn every_layer_denies_what_panics() {
    for layer in LAYERS {
        let text = fs::read_to_string(root().join(format!("src/{layer}/mod.rs"))).expect("a head");
        let lints = [
            "arithmetic_side_effects",
            "expect_used",
            "indexing_slicing",
            "panic",
            "todo",
            "unreachable",
            "unwrap_used",
        ];
        let (head, _) = text.split_once("mod ").expect("modules");
        for lint in lints {
            // Why json goes without it is said there.
            let excepted = (layer, lint) == ("json", "arithmetic_side_effects");
            let denied = head.contains(&format!("clippy::{lint},"));
            assert!(denied || excepted, "src/{layer}/mod.rs: {lint}");
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

/// What editors, merges and crashes leave behind.
const STRAY: [&str; 8] = [
    "*.orig",
    "*.rej",
    "*~",
    "*.sw[a-p]",
    ".#*",
    "#*#",
    "*.bak",
    "core.[0-9]*",
];

#[test]
fn no_leftover_is_tracked() {
    let listed = Command::new("git")
        .args(["ls-files", "--"])
        .args(STRAY.map(|pattern| format!(":(glob)**/{pattern}")))
        .current_dir(root())
        .output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
        println!("skipped: no git, or not its work tree");
        return;
    };
    let stray = String::from_utf8_lossy(&listed.stdout);
    assert_eq!(stray, "", "leftovers are tracked");
}

/// What may come in with a dependency, as cargo-deny has it too.
fn policy() -> toml::Table {
    let text = fs::read_to_string(root().join(".ci/deny.toml")).expect("the policy");
    text.parse().expect("TOML")
}

/// The texts, or the crates' names, in one list of the policy.
fn listed(table: &str, list: &str) -> BTreeSet<String> {
    let policy = policy();
    let items = policy[table][list].as_array().expect("a list");
    let name = |item: &toml::Value| {
        item.get("crate")
            .unwrap_or(item)
            .as_str()
            .map(str::to_owned)
    };
    items
        .iter()
        .map(|item| name(item).expect("a name"))
        .collect()
}

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A licence expression is met if what we allow satisfies it: one alternative, or all parts.
fn is_allowed(licenses: &BTreeSet<String>, expression: &str) -> bool {
    // The old separator of alternatives.
    let expression = expression.replace('/', " OR ");
    let is_allowed_term = |term: &str| licenses.contains(term.trim_matches(['(', ')', ' ']));
    // Of the nested expressions only `(a OR b) AND c` is in use.
    expression
        .split(" AND ")
        .all(|part| part.split(" OR ").any(is_allowed_term))
}

/// Name, version and licence of the packages that `cargo tree` finds.
fn packages(args: &[&str]) -> BTreeSet<(String, String, String)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--prefix=none", "--format={p} {l}"])
        .args(args)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let failure = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failure}");
    let text = String::from_utf8_lossy(&output.stdout);
    let package = |line: &str| {
        let line = line.trim_end_matches(" (*)").replace(" (proc-macro)", "");
        let (name, rest) = line.split_once(" v")?;
        let (version, rest) = rest.split_once(' ')?;
        // A package of this workspace says where it is.
        let license = match rest.split_once(") ") {
            Some((place, license)) if place.starts_with("(/") => license,
            _ => rest,
        };
        Some((name.to_owned(), version.to_owned(), license.to_owned()))
    };
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| package(line).expect(line))
        .collect()
}

#[test]
fn dependencies_come_under_licences_that_we_can_keep() {
    let found = packages(&["--workspace", "--edges=normal,build,dev"]);
    let (licenses, exceptions) = (
        listed("licenses", "allow"),
        listed("licenses", "exceptions"),
    );
    for (name, _, license) in &found {
        let is_allowed = is_allowed(&licenses, license);
        assert_ne!(
            is_allowed,
            exceptions.contains(name),
            "{name} is under {license:?}"
        );
    }
    for name in exceptions {
        let needed = found.iter().any(|(found, ..)| *found == name);
        assert!(needed, "{name} needs no exception");
    }
}

#[test]
fn the_server_has_one_version_of_each_dependency() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version, _) in packages(&["--edges=normal,no-proc-macro"]) {
        versions.entry(name).or_default().push(version);
    }
    let duplicates = listed("bans", "skip");
    for (name, versions) in &versions {
        let excepted = duplicates.contains(name);
        assert_eq!(versions.len() > 1, excepted, "{name} in {versions:?}");
    }
}

#[test]
fn dependencies_come_from_the_registry() {
    for lock in ["Cargo.lock", "tests/fuzz/coverage/Cargo.lock"] {
        let text = fs::read_to_string(root().join(lock)).expect("a lock file");
        for line in text.lines().filter(|line| line.starts_with("source = ")) {
            assert_eq!(line, format!("source = {REGISTRY:?}"), "{lock}");
        }
    }
}
