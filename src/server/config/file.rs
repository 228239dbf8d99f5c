//! The configuration file: TOML, flat, its keys the names of the settings.
//!
//! Every key must name a setting, and name it once; values stay text until
//! the setting reads them, so that a file and a flag accept the same
//! spellings.

use std::{fs, path::Path};

use toml::de::{DeTable, DeValue};

use super::{ConfigError, Source, Typed, settings::Setting};

/// Reads every setting of the file at `path`, in the order of its keys' names.
pub fn read(path: &Path) -> Result<Vec<Typed>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| ConfigError::FileUnreadable {
        path: path.to_owned(),
        error,
    })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Typed>, ConfigError> {
    let line_of = |offset: usize| {
        let before = text.bytes().take(offset);
        before
            .filter(|&byte| byte == b'\n')
            .count()
            .saturating_add(1)
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError::FileSyntax {
        path: path.to_owned(),
        line: line_of(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;

    let mut read: Vec<Typed> = Vec::new();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        let key = key.get_ref().as_ref();
        let Some(setting) = Setting::find(key) else {
            let nearest = Setting::nearest(key);
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                line,
                key: key.to_owned(),
                nearest,
            });
        };
        if read.iter().any(|typed| typed.setting.name == setting.name) {
            let (path, setting) = (path.to_owned(), setting.name);
            return Err(ConfigError::RepeatedKey {
                path,
                line,
                setting,
            });
        }
        let source = Source::File {
            path: path.to_owned(),
            line,
        };
        match texts(value.get_ref(), setting.list) {
            Some(values) => read.push(Typed {
                setting,
                values,
                source,
            }),
            None => {
                let kind = value.get_ref().type_str();
                let list = if setting.list {
                    ", or an array of those"
                } else {
                    ""
                };
                return Err(ConfigError::BadValue {
                    setting: setting.name,
                    value: format!("a TOML {kind}"),
                    wanted: format!("text in quotes or a whole number{list}"),
                    source,
                });
            }
        }
    }
    Ok(read)
}

/// A value as the texts a command line would have held; `None` for a kind no setting has.
fn texts(value: &DeValue<'_>, list: bool) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.as_ref().to_owned()]),
        DeValue::Integer(integer) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            Some(vec![number.to_string()])
        }
        DeValue::Array(items) if list => {
            let nested = items.iter().map(|item| texts(item.get_ref(), false));
            Some(nested.collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}
