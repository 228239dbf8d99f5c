//! The request header fields that the server knows, found in one pass.
//!
//! A field of ours (`Stream-…`, `Producer-…`, `Content-Type`) may appear once;
//! a second one is refused rather than guessed about (extensions 2.4,
//! Malformed). `If-None-Match` is a list: its lines are one. Unknown fields are
//! passed over.

use std::borrow::Cow;

use crate::protocol::{
    caching::is_any, content_type::ContentType, error::Refusal, incarnation::Incarnation,
};

macro_rules! fields {
    ($($variant:ident = $name:literal,)+) => {
        /// A header field that some operation reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $(#[doc = $name] $variant,)+
        }

        const NAMES: &[&str] = &[$($name,)+];
        const FIELDS: &[Field] = &[$(Field::$variant,)+];
    };
}

fields! {
    ContentType = "content-type",
    Host = "host",
    IfNoneMatch = "if-none-match",
    IfRange = "if-range",
    Origin = "origin",
    ProducerDigest = "producer-digest",
    ProducerEpoch = "producer-epoch",
    ProducerId = "producer-id",
    ProducerSeq = "producer-seq",
    Range = "range",
    StreamClosed = "stream-closed",
    StreamExpiresAt = "stream-expires-at",
    StreamForkOffset = "stream-fork-offset",
    StreamForkSubOffset = "stream-fork-sub-offset",
    StreamForkedFrom = "stream-forked-from",
    StreamIncarnation = "stream-incarnation",
    StreamSeq = "stream-seq",
    StreamSnapshotDigest = "stream-snapshot-digest",
    StreamSnapshotMatch = "stream-snapshot-match",
    StreamSnapshotParts = "stream-snapshot-parts",
    StreamTtl = "stream-ttl",
}

/// The values of the known fields of one request.
#[derive(Clone, Debug)]
pub struct Headers<'b> {
    values: [Option<&'b [u8]>; FIELDS.len()],
    repeated: u32,
    /// The lines of `If-None-Match`, joined, when there are several.
    if_none_match: Vec<u8>,
}

const _: () = assert!(FIELDS.len() <= 32);

impl<'b> Headers<'b> {
    /// Finds the known fields among all of a request's.
    pub fn collect(fields: impl Iterator<Item = (&'b [u8], &'b [u8])>) -> Self {
        let mut headers = Self {
            values: [None; FIELDS.len()],
            repeated: 0,
            if_none_match: Vec::new(),
        };
        for (name, value) in fields {
            let known = NAMES.iter().position(|known| {
                known.len() == name.len() && name.eq_ignore_ascii_case(known.as_bytes())
            });
            let Some(index) = known else { continue };
            if let Some(slot) = headers.values.get_mut(index)
                && let Some(earlier) = slot.replace(value)
            {
                headers.repeated |= 1 << index;
                if index == Field::IfNoneMatch as usize {
                    let list = &mut headers.if_none_match;
                    if list.is_empty() {
                        list.extend_from_slice(earlier);
                    }
                    list.push(b',');
                    list.extend_from_slice(value);
                }
            }
        }
        headers
    }

    /// The value of a field that may appear once.
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] when it appears more than once.
    pub fn once(&self, field: Field) -> Result<Option<&'b [u8]>, Refusal> {
        let index = field as usize;
        if self.repeated & (1 << index) != 0 {
            let name = NAMES.get(index).copied().unwrap_or_default();
            return Err(Refusal::InvalidHeader(format!(
                "{name} must appear at most once"
            )));
        }
        Ok(self.values.get(index).copied().flatten())
    }

    /// The value of a field of HTTP's own, ignored when it appears more than once.
    #[must_use]
    pub fn single(&self, field: Field) -> Option<&'b [u8]> {
        self.once(field).ok().flatten()
    }

    /// Whether a field is there at all.
    #[must_use]
    pub fn has(&self, field: Field) -> bool {
        self.values.get(field as usize).copied().flatten().is_some()
    }

    /// `If-None-Match`: every line of it as one list (RFC 9110 5.3).
    #[must_use]
    pub fn if_none_match(&self) -> Option<Box<[u8]>> {
        match self.if_none_match.as_slice() {
            [] => self.single(Field::IfNoneMatch).map(Into::into),
            list => Some(list.into()),
        }
    }

    /// Whether the request is to be carried out only if there is nothing: `If-None-Match: *`.
    #[must_use]
    pub fn unless_any(&self) -> bool {
        self.has(Field::IfNoneMatch) && self.if_none_match().is_some_and(|list| is_any(&list))
    }

    /// `Stream-Incarnation` (extensions 2.4).
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] for a malformed or repeated one.
    pub fn incarnation(&self) -> Result<Option<Incarnation>, Refusal> {
        self.once(Field::StreamIncarnation)?
            .map(Incarnation::parse)
            .transpose()
    }

    /// `Content-Type`; an empty value counts as absent.
    ///
    /// # Errors
    /// [`Refusal::InvalidContentType`] for a malformed one, [`Refusal::InvalidHeader`] for a
    /// repeated one.
    pub fn content_type(&self) -> Result<Option<ContentType>, Refusal> {
        match self.once(Field::ContentType)? {
            None | Some(b"") => Ok(None),
            Some(value) => ContentType::parse(value)
                .map(Some)
                .ok_or(Refusal::InvalidContentType),
        }
    }

    /// `Stream-Closed`: present only when its value is `true`, in any case (base protocol 4.1).
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] for a repeated one.
    pub fn stream_closed(&self) -> Result<bool, Refusal> {
        Ok(self
            .once(Field::StreamClosed)?
            .is_some_and(|value| value.eq_ignore_ascii_case(b"true")))
    }

    /// `Stream-Seq`: 1 to 256 bytes of visible ASCII.
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] for anything else.
    pub fn stream_seq(&self) -> Result<Option<Box<str>>, Refusal> {
        let Some(value) = self.once(Field::StreamSeq)? else {
            return Ok(None);
        };
        let legal = (1..=crate::base::limits::TOKEN_BYTES_MAX).contains(&value.len())
            && value.iter().all(|byte| (0x20..=0x7e).contains(byte));
        match std::str::from_utf8(value) {
            Ok(text) if legal => Ok(Some(text.into())),
            _ => Err(Refusal::InvalidHeader(
                "Stream-Seq must be 1 to 256 bytes of visible ASCII".into(),
            )),
        }
    }

    /// The host that the client addressed: the `authority` of its target, if that was in absolute form
    /// (RFC 9112 3.2.2), or `Host`.
    #[must_use]
    pub fn host(&self, authority: Option<&'b [u8]>) -> Option<Cow<'b, str>> {
        let field = || self.single(Field::Host).filter(|host| !host.is_empty());
        authority.or_else(field).map(String::from_utf8_lossy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers<'b>(fields: &'b [(&'b str, &'b str)]) -> Headers<'b> {
        let fields = fields.iter();
        Headers::collect(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn names_are_found_in_any_case_and_unknown_ones_passed_over() {
        let found = headers(&[
            ("STREAM-ttl", "5"),
            ("X-Other", "1"),
            ("content-TYPE", "a/b"),
        ]);
        assert_eq!(found.once(Field::StreamTtl), Ok(Some(&b"5"[..])));
        assert_eq!(found.content_type().unwrap().unwrap().as_str(), "a/b");
        assert!(!found.has(Field::Host));
    }

    #[test]
    fn a_repeated_field_is_refused() {
        let found = headers(&[("Stream-Incarnation", "1"), ("stream-incarnation", "1")]);
        assert!(found.incarnation().is_err());
        assert_eq!(found.single(Field::StreamIncarnation), None);
    }

    #[test]
    fn lines_of_a_list_are_one_list() {
        let list = |values: &[&'static str]| {
            let fields: Vec<_> = values.iter().map(|v| ("if-none-match", *v)).collect();
            headers(&fields).if_none_match().map(|list| list.to_vec())
        };
        assert_eq!(list(&[]), None);
        assert_eq!(list(&["\"a\""]), Some(b"\"a\"".to_vec()));
        assert_eq!(
            list(&["\"a\"", "", "\"c\""]),
            Some(b"\"a\",,\"c\"".to_vec())
        );
    }

    #[test]
    fn closed_means_true_and_nothing_else() {
        for (value, closed) in [("true", true), ("TRUE", true), ("yes", false), ("", false)] {
            assert_eq!(
                headers(&[("Stream-Closed", value)]).stream_closed(),
                Ok(closed)
            );
        }
    }
}
