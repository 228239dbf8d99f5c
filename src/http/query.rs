//! The query of a stream read: `offset`, `live`, `cursor`, `max_bytes`,
//! `timeout_ms`, `consistency` (base protocol 5.6 to 5.8; extensions 9).

use std::borrow::Cow;

use crate::{
    base::limits::LONG_POLL_MS_MAX,
    http::target::query_pairs,
    protocol::{
        error::Refusal,
        offset::{StartOffset, decimal, parse_start},
        read::Live,
    },
};

/// What a read's query asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadQuery {
    /// `offset`; the beginning when absent.
    pub start: StartOffset,
    /// `live`.
    pub live: Live,
    /// `cursor`, as sent.
    pub cursor: Option<Box<[u8]>>,
    /// `max_bytes`, when it is a decimal integer.
    pub max_bytes: Option<u64>,
    /// `timeout_ms`, clamped to 1..60000, when it is a decimal integer.
    pub timeout_ms: Option<u64>,
}

impl ReadQuery {
    /// Reads a raw query.
    ///
    /// # Errors
    /// [`Refusal::InvalidQuery`] for a known parameter that is repeated, malformed or does not
    /// fit the others; [`Refusal::InvalidOffset`]; [`Refusal::Unsupported`] for parameters that
    /// were removed from the extensions.
    pub fn parse(query: Option<&[u8]>) -> Result<Self, Refusal> {
        let mut offset: Option<Cow<'_, str>> = None;
        let mut live: Option<Cow<'_, str>> = None;
        let mut cursor: Option<Cow<'_, str>> = None;
        let mut max_bytes: Option<Cow<'_, str>> = None;
        let mut timeout_ms: Option<Cow<'_, str>> = None;
        let mut consistency: Option<Cow<'_, str>> = None;
        for pair in query_pairs(query.unwrap_or_default()) {
            let (key, value) = pair.map_err(|_| {
                Refusal::InvalidQuery("the query is not valid percent-encoded UTF-8")
            })?;
            let (slot, repeated) = match key.as_ref() {
                "offset" => (&mut offset, "offset must appear at most once"),
                "live" => (&mut live, "live must appear at most once"),
                "cursor" => (&mut cursor, "cursor must appear at most once"),
                "max_bytes" => (&mut max_bytes, "max_bytes must appear at most once"),
                "timeout_ms" => (&mut timeout_ms, "timeout_ms must appear at most once"),
                "consistency" => (&mut consistency, "consistency must appear at most once"),
                "record" => {
                    return Err(Refusal::Unsupported("the record parameter was removed"));
                }
                "incarnation" => {
                    return Err(Refusal::Unsupported(
                        "the incarnation parameter is not supported; send the Stream-Incarnation header",
                    ));
                }
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return Err(Refusal::InvalidQuery(repeated));
            }
        }
        let live = match live.as_deref() {
            None => Live::No,
            Some("long-poll") => Live::LongPoll,
            Some("sse") => Live::Sse,
            Some(_) => return Err(Refusal::InvalidQuery("live must be long-poll or sse")),
        };
        match consistency.as_deref() {
            None | Some("local") => {}
            Some("leader") if live == Live::No => {}
            Some("leader") => {
                return Err(Refusal::InvalidQuery(
                    "consistency=leader does not go with live",
                ));
            }
            Some(_) => return Err(Refusal::InvalidQuery("consistency must be local or leader")),
        }
        let start = match &offset {
            Some(text) => parse_start(text.as_bytes())?,
            None if live == Live::No => StartOffset::Beginning,
            None => return Err(Refusal::InvalidQuery("a live read must name its offset")),
        };
        let number = |text: Option<Cow<'_, str>>| text.and_then(|text| decimal(text.as_bytes()));
        Ok(Self {
            start,
            live,
            cursor: cursor.map(|text| text.as_bytes().into()),
            max_bytes: number(max_bytes),
            timeout_ms: number(timeout_ms).map(|ms| ms.clamp(1, LONG_POLL_MS_MAX)),
        })
    }
}

/// Checks the query of a bootstrap, which takes none (extensions 3.1).
///
/// # Errors
/// [`Refusal::InvalidQuery`] for `live`.
pub fn check_bootstrap(query: Option<&[u8]>) -> Result<(), Refusal> {
    for pair in query_pairs(query.unwrap_or_default()) {
        match pair {
            Ok((key, _)) if key == "live" => {
                return Err(Refusal::InvalidQuery(
                    "bootstrap does not support live reads",
                ));
            }
            Ok(_) => {}
            Err(_) => {
                return Err(Refusal::InvalidQuery(
                    "the query is not valid percent-encoded UTF-8",
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<ReadQuery, Refusal> {
        ReadQuery::parse(Some(query.as_bytes()))
    }

    #[test]
    fn what_is_absent_has_its_default() {
        let query = ReadQuery::parse(None).unwrap();
        assert_eq!(
            (query.start, query.live),
            (StartOffset::Beginning, Live::No)
        );
        assert_eq!(query, parse("unknown=1&max_bytes=abc&timeout_ms=").unwrap());
    }

    #[test]
    fn values_are_clamped_or_refused() {
        assert_eq!(parse("timeout_ms=0").unwrap().timeout_ms, Some(1));
        assert_eq!(parse("timeout_ms=999999").unwrap().timeout_ms, Some(60_000));
        assert_eq!(parse("max_bytes=3").unwrap().max_bytes, Some(3));
        assert_eq!(parse("offset=%34").unwrap().start, StartOffset::At(4));
        for bad in [
            "live=true",
            "live=sse",
            "live=long-poll",
            "offset=1&offset=1",
            "consistency=foo",
            "consistency=leader&live=sse&offset=-1",
            "offset=%ff",
        ] {
            assert!(matches!(parse(bad), Err(Refusal::InvalidQuery(_))), "{bad}");
        }
        assert_eq!(parse("offset="), Err(Refusal::InvalidOffset));
        assert_eq!(parse("offset=1+1"), Err(Refusal::InvalidOffset));
        assert!(matches!(parse("record=1"), Err(Refusal::Unsupported(_))));
        assert!(parse("consistency=leader").is_ok());
    }

    #[test]
    fn bootstrap_takes_no_live() {
        assert!(check_bootstrap(Some(b"x=1")).is_ok());
        assert!(check_bootstrap(Some(b"live=sse")).is_err());
        assert!(check_bootstrap(None).is_ok());
    }
}
