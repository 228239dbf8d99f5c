//! A request body on its way to stored form: bytes as they are, or JSON
//! message text, normalised as it arrives (extensions, JSON Message Text).

use bytes::Bytes;

use crate::{
    json::{JsonError, Normaliser, normalise},
    protocol::{
        error::Refusal,
        producer::{Digest, ProducerRefusal},
    },
};

/// Collects a body. All or nothing: an error drops everything.
pub struct StoredBody {
    form: Form,
    text: Vec<u8>,
    received: u64,
    hasher: Option<Box<blake3::Hasher>>,
}

enum Form {
    Octets,
    Json(Box<Normaliser>),
    Normalised,
}

/// A whole body.
#[derive(Debug)]
pub struct Finished {
    /// What to store.
    pub bytes: Bytes,
    /// Bytes as they were sent.
    pub received: u64,
    /// Whether it was JSON text.
    pub is_json: bool,
}

impl StoredBody {
    /// A body that is stored as it comes.
    #[must_use]
    pub fn octets() -> Self {
        Self {
            form: Form::Octets,
            text: Vec::new(),
            received: 0,
            hasher: None,
        }
    }

    /// A body of JSON text.
    #[must_use]
    pub fn json() -> Self {
        Self {
            form: Form::Json(Box::default()),
            ..Self::octets()
        }
    }

    /// Also computes the digest of what is sent, to compare with `Producer-Digest`.
    #[must_use]
    pub fn with_digest(mut self) -> Self {
        self.hasher = Some(Box::default());
        self
    }

    /// Takes the whole body at once: the fast path of small ones.
    ///
    /// # Errors
    /// [`Refusal::InvalidJson`].
    pub fn push_whole(&mut self, body: &[u8]) -> Result<(), Refusal> {
        if matches!(self.form, Form::Octets) {
            return self.push(body);
        }
        self.received = body.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(body);
        }
        self.form = Form::Normalised;
        normalise(body, &mut self.text)
            .map(drop)
            .map_err(json_refusal)
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// [`Refusal::InvalidJson`] as soon as it is known.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        self.received = self.received.saturating_add(piece.len() as u64);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(piece);
        }
        match &mut self.form {
            Form::Octets | Form::Normalised => {
                self.text.extend_from_slice(piece);
                Ok(())
            }
            Form::Json(normaliser) => {
                let fed = normaliser.feed(piece, &mut self.text);
                fed.map_err(json_refusal)
            }
        }
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.text.capacity() as u64
    }

    /// Ends the body. An empty one is empty, whatever its type.
    ///
    /// # Errors
    /// [`Refusal::InvalidJson`], or [`Refusal::Producer`] when `digest` is given and differs.
    pub fn finish(mut self, digest: Option<&Digest>) -> Result<Finished, Refusal> {
        if let (Some(hasher), Some(digest)) = (&self.hasher, digest)
            && hasher.finalize().as_bytes() != digest
        {
            return Err(Refusal::Producer(ProducerRefusal::DigestMismatch));
        }
        let is_json = match &mut self.form {
            Form::Octets => false,
            Form::Json(normaliser) if self.received > 0 => {
                normaliser.finish(&mut self.text).map_err(json_refusal)?;
                true
            }
            Form::Json(_) | Form::Normalised => true,
        };
        Ok(Finished {
            bytes: self.text.into(),
            received: self.received,
            is_json,
        })
    }
}

fn json_refusal(error: JsonError) -> Refusal {
    Refusal::InvalidJson(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_body_gives_what_its_pieces_give() {
        for text in [&b" [1, {\"a\": [ ] }]"[..], b"{", b"[]"] {
            let mut whole = StoredBody::json();
            let whole = whole.push_whole(text).and_then(|()| whole.finish(None));
            assert_eq!(
                whole.map(|body| body.bytes).ok(),
                stored(StoredBody::json(), text).ok()
            );
        }
    }

    fn stored(mut body: StoredBody, text: &[u8]) -> Result<Bytes, Refusal> {
        for piece in text.chunks(3) {
            body.push(piece)?;
        }
        body.finish(None).map(|finished| finished.bytes)
    }

    #[test]
    fn json_is_normalised_and_octets_are_kept() {
        let text = b" [ {\"a\": 1.50e3 }, 2 ] ";
        assert_eq!(stored(StoredBody::octets(), text).unwrap(), &text[..]);
        assert_eq!(
            stored(StoredBody::json(), text).unwrap(),
            &b"{\"a\":1.50e3}\n2\n"[..]
        );
        assert_eq!(stored(StoredBody::json(), b"").unwrap(), &b""[..]);
        for bad in [&b"{"[..], b"  ", b"1 2", b"\"\xff\""] {
            assert!(matches!(
                stored(StoredBody::json(), bad),
                Err(Refusal::InvalidJson(_))
            ));
        }
    }

    #[test]
    fn the_digest_is_of_the_body_as_sent() {
        let text = b" [1] ";
        let right = *blake3::hash(text).as_bytes();
        for (digest, ok) in [(right, true), ([0; 32], false)] {
            let mut body = StoredBody::json().with_digest();
            body.push(text).unwrap();
            assert_eq!(body.finish(Some(&digest)).is_ok(), ok);
        }
    }
}
