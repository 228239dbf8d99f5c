use std::{ffi::OsString, fs, path::PathBuf, time::Duration};

use super::{
    Config, ConfigError, Resolved, Source, Typed, resolve,
    settings::{SETTINGS, Setting},
};
use crate::base::limits::Durability;

/// A file of this test's own, removed at its end.
struct TempFile(PathBuf);

impl TempFile {
    fn new(test: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-{test}-{}.toml", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn flag(name: &str, value: &str) -> Typed {
    let setting = Setting::find(name).unwrap();
    Typed {
        setting,
        values: vec![value.to_owned()],
        source: Source::Flag(setting.name),
    }
}

fn with_flags(flags: &[(&str, &str)]) -> Result<Resolved, ConfigError> {
    resolve(
        flags
            .iter()
            .map(|(name, value)| flag(name, value))
            .collect(),
        |_| None,
        None,
    )
}

fn with_file(test: &str, text: &str) -> Result<Resolved, ConfigError> {
    resolve(Vec::new(), |_| None, Some(&TempFile::new(test, text).0))
}

/// What a failed resolution says, without the folder of the test's file.
fn refusal(result: Result<Resolved, ConfigError>) -> String {
    let message = result.expect_err("this must be refused").to_string();
    let folder = std::env::temp_dir().display().to_string();
    message
        .replace(&format!("{folder}/"), "")
        .replace(&format!("-{}", std::process::id()), "")
}

/// A value that is not this setting's default and passes every relation.
fn another_value(setting: &Setting) -> &'static str {
    match setting.name {
        "listen" => "0.0.0.0:80",
        "admin-listen" => "[::1]:9000",
        "data-dir" => "/var/lib/thalweg \"quoted\"",
        "shards" => "77",
        "durability" => "os",
        "cores" => "5,1-3",
        "cors-allow-origin" => "https://a.example,http://localhost:3000",
        "log" => "warn,thalweg=debug",
        "spin-us" => "7",
        "snapshot-bytes-max" => "512MiB",
        name if name.ends_with("-bytes-max") && name.contains("request-line") => "1000",
        "head-bytes-max" => "64KiB",
        "request-bytes-max" => "4MiB",
        "journal-file-bytes" => "48MiB",
        _ => match setting.placeholder {
            "BYTES" => "12345678",
            "TIME" => "1234ms",
            "MILLISECONDS" => "250",
            "N" => "123",
            other => panic!("{}: no sample for <{other}>; add one", setting.name),
        },
    }
}

#[test]
fn names_are_their_fields_in_dashes() {
    let shown = format!("{:#?}", Config::default());
    for setting in SETTINGS {
        let field = match setting.name {
            "cors-allow-origin" => String::from("cors_allow_origins"),
            name => name.replace('-', "_"),
        };
        assert!(
            shown.contains(&format!("{field}: ")),
            "{} has no such field",
            setting.name
        );
    }
}

#[test]
fn every_setting_is_flag_file_key_and_variable_and_all_agree() {
    for setting in SETTINGS {
        let value = another_value(setting);
        let by_flag = with_flags(&[(setting.name, value)]).unwrap().config;
        assert_ne!(
            by_flag,
            Config::default(),
            "{}: the sample is the default",
            setting.name
        );

        let literal = toml::Value::from(value);
        for key in [setting.name.to_owned(), setting.name.replace('-', "_")] {
            let by_file = with_file(&key, &format!("{key} = {literal}\n"))
                .unwrap()
                .config;
            assert_eq!(by_file, by_flag, "{key}");
        }

        let variable = setting.variable();
        let environment = |name: &str| (name == variable).then(|| OsString::from(value));
        let by_variable = resolve(Vec::new(), environment, None).unwrap().config;
        assert_eq!(by_variable, by_flag, "{variable}");
    }
}

#[test]
fn printed_configuration_reads_back_equal_and_names_everything() {
    let values: Vec<_> = SETTINGS
        .iter()
        .map(|s| (s.name, another_value(s)))
        .collect();
    for (test, resolved) in [
        ("print-defaults", with_flags(&[]).unwrap()),
        ("print-changed", with_flags(&values).unwrap()),
    ] {
        let printed = resolved.to_toml();
        for setting in SETTINGS {
            let count = printed
                .lines()
                .filter(|l| {
                    l.trim_start_matches("# ")
                        .starts_with(&format!("{} =", setting.name))
                })
                .count();
            assert_eq!(count, 1, "{} in:\n{printed}", setting.name);
            assert!(
                printed.contains(setting.help),
                "{} has no comment",
                setting.name
            );
        }
        let read_back = with_file(test, &printed).unwrap();
        assert_eq!(read_back.config, resolved.config, "from:\n{printed}");
    }
}

#[test]
fn printed_configuration_tells_units_and_sources() {
    let file = TempFile::new("sources", "\nhead-timeout = '7s'\npipeline_max = 9\n");
    let environment = |name: &str| (name == "THALWEG_PIPELINE_MAX").then(|| OsString::from("10"));
    let resolved = resolve(vec![flag("durability", "os")], environment, Some(&file.0)).unwrap();
    let printed = resolved.to_toml();
    for expected in [
        "[sync or os; set by --durability]\ndurability = \"os\"\n",
        "[count; set by THALWEG_PIPELINE_MAX]\npipeline-max = 10\n",
        &format!(
            "[time; a plain number is seconds; set by {}:2]\nhead-timeout = \"7s\"\n",
            file.0.display()
        ),
        "[bytes; default]\nrequest-bytes-max = \"8MiB\"\n",
        "[core numbers; default]\n# cores =\n",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in:\n{printed}");
    }
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let file = TempFile::new(
        "precedence",
        "pipeline-max = 1\nconnections-max = 1\nlive-reads-max = 1\n",
    );
    let environment = |name: &str| {
        let set = ["THALWEG_PIPELINE_MAX", "THALWEG_CONNECTIONS_MAX"].contains(&name);
        set.then(|| OsString::from("2"))
    };
    let resolved = resolve(vec![flag("pipeline-max", "3")], environment, Some(&file.0)).unwrap();
    let limits = &resolved.config.limits;
    assert_eq!(
        (
            limits.pipeline_max,
            limits.connections_max,
            limits.live_reads_max
        ),
        (3, 2, 1)
    );
    assert_eq!(
        limits.mailbox_requests_max,
        Config::default().limits.mailbox_requests_max
    );
    assert_eq!(
        resolved.source("pipeline-max"),
        Some(&Source::Flag("pipeline-max"))
    );
    assert_eq!(
        resolved.source("mailbox-requests-max"),
        Some(&Source::Default)
    );
    assert_eq!(resolved.source("no-such"), None);
}

#[test]
fn an_overridden_mistake_in_the_file_is_still_told() {
    let file = TempFile::new("overridden", "pipeline-max = 'many'\n");
    let result = resolve(vec![flag("pipeline-max", "3")], |_| None, Some(&file.0));
    assert_eq!(
        refusal(result),
        "thalweg-overridden.toml:1: `many` is no value for pipeline-max; write a whole number"
    );
}

#[test]
fn an_empty_variable_is_unset() {
    let resolved = resolve(Vec::new(), |_| Some(OsString::new()), None).unwrap();
    assert_eq!(resolved.config, Config::default());
}

#[test]
fn units_read_what_people_write() {
    let resolved = with_flags(&[
        ("request-bytes-max", "2MB"),
        ("memory-bytes-max", "1.5 GiB"),
        ("drain-bytes-max", "0"),
        ("head-timeout", "3"),
        ("body-timeout", "1m 30s"),
        ("idle-timeout", "500 ms"),
        ("write-timeout", "PT20S"),
        ("cors-allow-origin", "*"),
    ])
    .unwrap();
    let limits = resolved.config.limits;
    assert_eq!(limits.request_bytes_max, 2_000_000);
    assert_eq!(limits.memory_bytes_max, 3 << 29);
    assert_eq!(limits.drain_bytes_max, 0);
    assert_eq!(limits.head_timeout, Duration::from_secs(3));
    assert_eq!(limits.body_timeout, Duration::from_secs(90));
    assert_eq!(limits.idle_timeout, Duration::from_millis(500));
    assert_eq!(limits.write_timeout, Duration::from_secs(20));
    assert!(resolved.config.cors_allow_origins.is_empty());

    let file = "memory-bytes-max = 0x4000_0000\ncores = [3, '0-1']\ncors-allow-origin = ['http://a', 'http://b']\ndurability = \"os\"";
    let config = with_file("units", file).unwrap().config;
    assert_eq!(config.limits.memory_bytes_max, 1 << 30);
    assert_eq!(config.cores, Some(vec![3, 0, 1]));
    assert_eq!(config.shards, 3, "named cores ask for a shard each");
    assert_eq!(config.cors_allow_origins, ["http://a", "http://b"]);
    assert_eq!(config.durability, Durability::Os);
}

#[test]
fn bad_values_say_what_would_be_right() {
    for (name, value, wanted) in [
        ("listen", "localhost:4437", "an IP address and a port"),
        ("listen", "4437", "an IP address and a port"),
        (
            "durability",
            "fsync",
            "`sync` (survives power loss) or `os`",
        ),
        ("request-bytes-max", "8 apples", "8388608, 8MiB or 8MB"),
        ("request-bytes-max", "-1", "8388608, 8MiB or 8MB"),
        ("request-bytes-max", "99999999999EiB", "at most 1EiB"),
        ("head-timeout", "-5s", "a time as 20s"),
        ("head-timeout", "5s ago", "a time as 20s"),
        ("head-timeout", "soon", "a time as 20s"),
        ("pipeline-max", "1.5", "a whole number"),
        ("pipeline-max", "", "a whole number"),
        ("shards", "-1", "a whole number"),
        ("cores", "0,0", "each once"),
        ("cores", "3-1", "each once"),
        ("cores", "0-99999999999", "each once"),
        ("cores", "", "core numbers"),
        ("cors-allow-origin", "https://a.example/", "no path"),
        ("cors-allow-origin", "https://A.example", "lower case"),
        ("cors-allow-origin", "*,https://a.example", "* alone"),
        (
            "cors-allow-origin",
            "https://a\r\nX: y",
            "as a browser sends",
        ),
        ("data-dir", "", "the path of one directory"),
        ("log", "info,thalweg=loud", "a filter as info"),
    ] {
        let message = refusal(with_flags(&[(name, value)]));
        assert!(
            message.starts_with(&format!("--{name}: `{value}` is no value for {name}")),
            "{message}"
        );
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn numbers_and_relations_are_checked() {
    for (flags, expected) in [
        (
            &[("shards", "0")][..],
            "--shards is 0, and must be from 1 to 1024",
        ),
        (
            &[("ring-depth", "65536")],
            "--ring-depth is 65536, and must be from 1 to 32768",
        ),
        (
            &[("io-memory-bytes", "4KiB")],
            "--io-memory-bytes is 4KiB, and must be at least 64KiB",
        ),
        (
            &[("spin-us", "1000000")],
            "--spin-us is 1000000, and must be from 0 to 10000",
        ),
        (
            &[("listen", "0.0.0.0:4438")],
            "--listen 0.0.0.0:4438 and --admin-listen 127.0.0.1:4438 share a port; give the admin plane another",
        ),
    ] {
        assert_eq!(refusal(with_flags(flags)), expected);
    }
    let journal = "the record of the largest request body (--request-bytes-max) must fit";
    for (flags, expected) in [
        (
            ("journal-file-bytes", "1MiB"),
            format!("--journal-file-bytes is 1MiB, and must be at least 9MiB: {journal}"),
        ),
        (
            ("request-bytes-max", "40MiB"),
            format!(
                "--journal-file-bytes, by default, is 32MiB, and must be at least 41MiB: {journal}"
            ),
        ),
        (
            ("long-poll-timeout", "90s"),
            String::from("--long-poll-timeout is 90s, and may be at most 1m"),
        ),
    ] {
        assert_eq!(refusal(with_flags(&[flags])), expected);
    }
    // As it is written there.
    let file = with_file("relations", "shards = 1\njournal_file_bytes = \"1MiB\"\n");
    let message = refusal(file);
    assert!(
        message.contains(":2: journal-file-bytes is 1MiB, and must be at least 9MiB"),
        "{message}"
    );
    let typed = |name: &str| (name == "THALWEG_SPIN_US").then(|| OsString::from("1000000"));
    assert_eq!(
        refusal(resolve(Vec::new(), typed, None)),
        "THALWEG_SPIN_US is 1000000, and must be from 0 to 10000"
    );
    // Ports the kernel chooses differ.
    assert!(with_flags(&[("listen", "127.0.0.1:0"), ("admin-listen", "127.0.0.1:0")]).is_ok());
}

#[test]
fn mistakes_in_a_file_name_the_line_and_the_remedy() {
    for (text, expected) in [
        (
            "# first\nrequest-bytes-mx = 1\n",
            "thalweg-mistakes.toml:2: there is no setting `request-bytes-mx`; did you mean `request-bytes-max`?",
        ),
        (
            "Head_Timeout = 1\n",
            "thalweg-mistakes.toml:1: there is no setting `Head_Timeout`; did you mean `head-timeout`?",
        ),
        (
            "zzz = 1",
            "thalweg-mistakes.toml:1: there is no setting `zzz`; `thalweg serve --print-config` lists them",
        ),
        (
            "repair = true",
            "thalweg-mistakes.toml:1: there is no setting `repair`; `thalweg serve --print-config` lists them",
        ),
        (
            "head-timeout = 1\nhead_timeout = 2",
            "thalweg-mistakes.toml:2: `head-timeout` is set twice; keep one",
        ),
        (
            "\n\nshards = 1.5",
            "thalweg-mistakes.toml:3: `a TOML float` is no value for shards; write text in quotes or a whole number",
        ),
        (
            "cores = [true]",
            "thalweg-mistakes.toml:1: `a TOML array` is no value for cores; write text in quotes or a whole number, or an array of those",
        ),
        (
            "shards = [1]",
            "thalweg-mistakes.toml:1: `a TOML array` is no value for shards; write text in quotes or a whole number",
        ),
        (
            "shards = 9223372036854775807999",
            "thalweg-mistakes.toml:1: `9223372036854775807999` is no value for shards; write a whole number",
        ),
    ] {
        assert_eq!(refusal(with_file("mistakes", text)), expected);
    }
    let message = refusal(with_file("syntax", "shards = 1\nlisten = \n"));
    assert!(
        message.starts_with("thalweg-syntax.toml:2: not valid TOML: ")
            && message.ends_with("text in quotes, as listen = \"127.0.0.1:4437\""),
        "{message}"
    );

    let missing = resolve(Vec::new(), |_| None, Some("/no/such/file.toml".as_ref()));
    assert!(
        refusal(missing)
            .starts_with("cannot read the configuration file /no/such/file.toml: No such file")
    );
}
