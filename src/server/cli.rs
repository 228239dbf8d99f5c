//! What may be typed after `thalweg`.
//!
//! Subcommands are clap's derive; the flags of settings are not written here
//! but read off [`SETTINGS`], so that help, file and flags cannot diverge. A
//! bare `thalweg`, with or without flags, is `thalweg serve`.
//!
//! To add a subcommand, add a variant to [`Command`] and one to [`Action`];
//! one that needs the configuration flattens [`ConfigArgs`].

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand, error::ErrorKind,
};

use super::backup::BackupOptions;
use super::config::{
    self, Config, ConfigError, Resolved, Source, Typed,
    settings::{Group, SETTINGS},
};

/// What the process was asked to do, all settled.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Serve until told to stop.
    Serve(Box<Config>),
    /// Print this, which is the effective configuration, and exit.
    PrintConfig(String),
    /// Say what this machine lacks to serve that configuration.
    Doctor {
        /// What would be served.
        config: Box<Config>,
        /// As JSON instead of text.
        json: bool,
    },
    /// Copy a data directory.
    Backup(BackupOptions),
    /// Make a data directory from a backup.
    Restore {
        /// The backup.
        from: PathBuf,
        /// The data directory to make.
        to: PathBuf,
    },
    /// Say what a data directory holds, and whether it verifies.
    Inspect {
        /// The data directory.
        dir: PathBuf,
        /// As JSON instead of text.
        json: bool,
        /// Streams to list at most.
        streams: Option<usize>,
    },
}

/// Reads the process's arguments and environment. Exits by itself, as clap does, after help, the
/// version (status 0) or arguments that it does not know (status 2).
///
/// # Errors
/// When arguments, environment and file give no valid configuration.
pub fn parse() -> Result<Action, ConfigError> {
    Cli::parse().action(|variable| env::var_os(variable))
}

/// A durable, append-only stream server over plain HTTP.
#[derive(Debug, Parser)]
#[command(
    name = "thalweg",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
#[command(
    after_help = "Every setting may also come from a TOML file (--config FILE, the same \
    names) or the environment (THALWEG_<NAME>, as THALWEG_DATA_DIR). A flag beats the \
    environment, which beats the file. Sizes are written 8MiB, times 20s or 500ms."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve streams (also what a bare `thalweg` does)
    Serve(ServeArgs),
    /// Say what this machine lacks to serve, and how to give it
    Doctor(DoctorArgs),
    /// Say what a data directory holds and whether all of it verifies; changes nothing
    Inspect(InspectArgs),
    /// Copy a data directory, also while it is served, and verify the copy
    Backup(BackupArgs),
    /// Make a data directory from a backup
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the effective configuration as TOML, with units and sources, and exit
    #[arg(long)]
    print_config: bool,
    /// Salvage what verifies of damaged data and set the rest aside, then serve
    #[arg(long)]
    repair: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the findings as a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct InspectArgs {
    /// The data directory; status 1 when anything in it does not verify
    dir: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// List at most this many streams [default: 20, in JSON all]
    #[arg(long, value_name = "N")]
    streams: Option<usize>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true))]
struct BackupArgs {
    /// The directory to make; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// The admin plane of the server that serves now, as its --admin-listen says
    #[arg(long, value_name = "ADDRESS:PORT", group = "source")]
    admin: Option<String>,
    /// The data directory. Without --admin, one that no server has; with it, where this machine
    /// finds the server's [default then: where the server says]
    #[arg(long, value_name = "DIR", group = "source")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// The backup
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The data directory to make; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// The flags of every setting, and the file: for each subcommand that needs a configuration.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// Read settings from this TOML file [variable: THALWEG_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: SettingFlags,
}

/// The flags of [`SETTINGS`] that were typed, in the table's order.
#[derive(Debug)]
struct SettingFlags(Vec<Typed>);

impl Cli {
    fn action(self, environment: impl Fn(&str) -> Option<OsString>) -> Result<Action, ConfigError> {
        match self.command.unwrap_or(Command::Serve(self.serve)) {
            Command::Serve(ServeArgs {
                config,
                print_config,
                repair,
            }) => {
                let mut resolved = config.resolve(environment)?;
                resolved.config.repair = repair;
                Ok(if print_config {
                    Action::PrintConfig(resolved.to_toml())
                } else {
                    Action::Serve(Box::new(resolved.config))
                })
            }
            Command::Doctor(DoctorArgs { config, json }) => {
                let config = Box::new(config.resolve(environment)?.config);
                Ok(Action::Doctor { config, json })
            }
            Command::Inspect(InspectArgs { dir, json, streams }) => {
                Ok(Action::Inspect { dir, json, streams })
            }
            Command::Backup(BackupArgs {
                to,
                admin,
                data_dir,
            }) => {
                let admin = admin.map(|admin| {
                    let address = admin.strip_prefix("http://").unwrap_or(&admin);
                    address.trim_end_matches('/').to_owned()
                });
                Ok(Action::Backup(BackupOptions {
                    admin,
                    data_dir,
                    to,
                }))
            }
            Command::Restore(RestoreArgs { from, data_dir }) => {
                Ok(Action::Restore { from, to: data_dir })
            }
        }
    }
}

impl ConfigArgs {
    fn resolve(
        self,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Resolved, ConfigError> {
        let from_environment = || environment("THALWEG_CONFIG").filter(|file| !file.is_empty());
        let file = self
            .config
            .or_else(|| from_environment().map(PathBuf::from));
        config::resolve(self.flags.0, environment, file.as_deref().map(Path::new))
    }
}

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Config::default();
        let flags = SETTINGS.iter().map(|setting| {
            // A list's default is an absence, which its help tells.
            let default = match setting.write(&defaults) {
                Some(value) if !setting.list => format!(" [default: {}]", plain(&value)),
                _ => String::new(),
            };
            let heading = match setting.group {
                Group::Server => "Server",
                Group::Limits => "Limits, budgets and timeouts",
            };
            Arg::new(setting.name)
                .long(setting.name)
                .value_name(setting.placeholder)
                .help(format!("{}{default}", setting.help))
                .help_heading(heading)
                .hide_short_help(setting.group == Group::Limits)
                .allow_negative_numbers(true)
                .action(if setting.list {
                    ArgAction::Append
                } else {
                    ArgAction::Set
                })
        });
        command.args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// A TOML value as it is typed on a command line, without quotes.
fn plain(value: &toml::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let typed = SETTINGS.iter().filter_map(|setting| {
            let values: Vec<String> = matches.get_many(setting.name)?.cloned().collect();
            Some(Typed {
                setting,
                values,
                source: Source::Flag(setting.name),
            })
        });
        Ok(Self(typed.collect()))
    }

    /// Flags are read once, never over earlier ones.
    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Err(clap::Error::new(ErrorKind::InvalidSubcommand))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::Durability;

    fn run(arguments: &[&str]) -> Result<Action, clap::Error> {
        let arguments = [&["thalweg"], arguments].concat();
        Ok(Cli::try_parse_from(arguments)?.action(|_| None).unwrap())
    }

    fn served(arguments: &[&str]) -> Config {
        match run(arguments) {
            Ok(Action::Serve(config)) => *config,
            other => panic!("{arguments:?} gave {other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_fault() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn bare_is_serve() {
        assert_eq!(served(&[]), Config::default());
        assert_eq!(served(&["serve"]), Config::default());
        assert_eq!(served(&["--shards", "3"]), served(&["serve", "--shards=3"]));
        assert!(served(&["--repair"]).repair);
    }

    #[test]
    fn every_setting_has_a_flag_and_help() {
        use clap::CommandFactory;
        let mut command = Cli::command();
        let help = command.render_long_help().to_string();
        for setting in SETTINGS {
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(setting.name));
            assert!(arg.is_some(), "--{} is missing", setting.name);
            assert!(help.contains(&format!("--{} <{}>", setting.name, setting.placeholder)));
        }
        assert!(help.contains("[default: 8MiB]"));
        let short = command.render_help().to_string();
        assert!(short.contains("--data-dir") && !short.contains("--head-timeout"));
    }

    #[test]
    fn lists_repeat_and_others_do_not() {
        let config = served(&[
            "--cors-allow-origin",
            "http://a",
            "--cors-allow-origin",
            "http://b",
            "--durability",
            "os",
        ]);
        assert_eq!(config.cors_allow_origins, ["http://a", "http://b"]);
        assert_eq!(config.durability, Durability::Os);
        let twice = run(&["--shards", "1", "--shards", "2"]).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn doctor_takes_the_same_flags() {
        let Ok(Action::Doctor { config, json }) = run(&["doctor", "--data-dir", "/d", "--json"])
        else {
            panic!("no doctor");
        };
        assert_eq!((config.data_dir, json), (PathBuf::from("/d"), true));
    }

    #[test]
    fn inspect_wants_a_directory() {
        let inspect = Action::Inspect {
            dir: PathBuf::from("/d"),
            json: true,
            streams: Some(3),
        };
        let typed = ["inspect", "/d", "--json", "--streams", "3"];
        assert_eq!(run(&typed).ok(), Some(inspect));
        assert!(run(&["inspect"]).is_err());
    }

    #[test]
    fn a_backup_wants_a_target_and_a_source() {
        let wanted = |admin: Option<&str>, data_dir: Option<&str>| {
            Some(Action::Backup(BackupOptions {
                admin: admin.map(str::to_owned),
                data_dir: data_dir.map(PathBuf::from),
                to: PathBuf::from("/b"),
            }))
        };
        let typed = |more: &[&str]| run(&[&["backup", "--to", "/b"], more].concat()).ok();
        let address = "127.0.0.1:4438";
        assert_eq!(typed(&["--admin", address]), wanted(Some(address), None));
        assert_eq!(
            typed(&["--admin", "http://127.0.0.1:4438/", "--data-dir", "/d"]),
            wanted(Some(address), Some("/d"))
        );
        assert_eq!(typed(&["--data-dir", "/d"]), wanted(None, Some("/d")));
        assert_eq!(typed(&[]), None);
        let restore = Action::Restore {
            from: PathBuf::from("/b"),
            to: PathBuf::from("/d"),
        };
        let typed = ["restore", "--from", "/b", "--data-dir", "/d"];
        assert_eq!(run(&typed).ok(), Some(restore));
    }

    #[test]
    fn print_config_prints() {
        let Ok(Action::PrintConfig(toml)) = run(&["--shards", "5", "--print-config"]) else {
            panic!("no configuration");
        };
        assert!(toml.contains("set by --shards]\nshards = 5\n"), "{toml}");
    }

    #[test]
    fn unknown_flags_suggest_the_nearest() {
        let message = run(&["--head-timeot", "1s"]).unwrap_err().to_string();
        assert!(message.contains("--head-timeout"), "{message}");
    }

    #[test]
    fn a_file_may_be_named_in_the_environment() {
        let cli = Cli::try_parse_from(["thalweg"]).unwrap();
        let named =
            |name: &str| (name == "THALWEG_CONFIG").then(|| OsString::from("/no/such.toml"));
        let error = cli.action(named).unwrap_err();
        assert!(
            matches!(error, ConfigError::FileUnreadable { .. }),
            "{error}"
        );
    }
}
