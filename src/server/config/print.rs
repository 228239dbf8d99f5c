//! `--print-config`: the effective configuration as a file that would give it.

use super::{
    Resolved, Source,
    settings::{Group, SETTINGS},
};

impl Resolved {
    /// Every setting as TOML, each under a comment with its meaning, its unit and its source.
    ///
    /// Reading it back as a configuration file gives an equal configuration.
    pub fn to_toml(&self) -> String {
        let mut out = String::from(
            "# The effective configuration of `thalweg serve`: read it back with --config FILE.\n",
        );
        let mut group = None;
        for setting in SETTINGS.iter() {
            if group != Some(setting.group) {
                out.push_str(match setting.group {
                    Group::Server => "\n# == Server ==\n",
                    Group::Limits => "\n# == Limits, budgets and timeouts ==\n",
                });
                group = Some(setting.group);
            }
            let source = match self.source(setting.name) {
                None | Some(Source::Default) => String::from("default"),
                Some(set) => format!("set by {set}"),
            };
            out.push_str(&format!(
                "\n# {} [{}; {source}]\n",
                setting.help, setting.measure
            ));
            match setting.write(&self.config) {
                Some(value) => out.push_str(&format!("{} = {value}\n", setting.name)),
                None => out.push_str(&format!("# {} =\n", setting.name)),
            }
        }
        out
    }
}
