//! The fields of records: little-endian integers, counted texts.

use super::BlobRecord;
use crate::{
    base::limits::BLOCK_BYTES_MAX,
    protocol::{
        content_type::ContentType, expiry::Lifetime, fork::ForkOrigin, incarnation::Incarnation,
        producer::Digest, stream_key::StreamKey,
    },
    storage::{
        blob::BlobId,
        segment::{Place, SegmentId},
    },
};

/// Appends fields to a record.
pub(in crate::shard) struct Writer<'a>(pub(in crate::shard) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(in crate::shard) fn head(&mut self, tag: u8, incarnation: Incarnation) {
        self.u8(tag);
        self.u64(incarnation.0);
    }

    pub(in crate::shard) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(in crate::shard) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(in crate::shard) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Texts are bounded far below 4 GiB by `base::limits`.
    pub(in crate::shard) fn text(&mut self, text: &str) {
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(in crate::shard) fn texts(&mut self, texts: &[Box<str>]) {
        self.0
            .extend_from_slice(&(texts.len() as u32).to_le_bytes());
        for text in texts {
            self.text(text);
        }
    }

    pub(in crate::shard) fn option<T>(
        &mut self,
        value: Option<&T>,
        write: impl FnOnce(&mut Self, &T),
    ) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Writes where a body is, and returns it if it belongs into the record.
    pub(in crate::shard) fn blob<'b>(&mut self, blob: &BlobRecord<'b>) -> &'b [u8] {
        match blob {
            BlobRecord::Inline(body) => {
                self.u8(0);
                body
            }
            BlobRecord::File { id, len } => {
                self.u8(1);
                self.0.extend_from_slice(&id.0);
                self.u64(*len);
                &[]
            }
            BlobRecord::Block(place) => {
                self.u8(2);
                self.place(*place);
                &[]
            }
        }
    }

    pub(in crate::shard) fn place(&mut self, place: Place) {
        self.u64(place.segment.0);
        self.u32(place.offset);
        self.u32(place.len);
    }

    pub(in crate::shard) fn lifetime(&mut self, lifetime: Lifetime) {
        let (kind, value) = match lifetime {
            Lifetime::Unlimited => (0, 0),
            Lifetime::Ttl { seconds } => (1, seconds),
            Lifetime::ExpiresAt { unix_ms } => (2, unix_ms),
        };
        self.u8(kind);
        self.u64(value);
    }

    pub(in crate::shard) fn origin(&mut self, origin: &ForkOrigin) {
        self.text(origin.source.as_str());
        self.u64(origin.incarnation.0);
        self.u64(origin.start);
        self.u64(origin.offset);
        self.option(origin.requested.as_ref(), |out, offset| out.u64(*offset));
        self.u64(origin.sub_offset);
    }
}

/// Takes fields off a record; `None` when it is too short or no writer wrote it.
pub(in crate::shard) struct Reader<'a>(pub(in crate::shard) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::shard) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(in crate::shard) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(in crate::shard) fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(in crate::shard) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(in crate::shard) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(in crate::shard) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// An offset, or a length, in bytes: below 2^62, beyond which no stream reaches, so that sums of
    /// a few do not overflow.
    pub(in crate::shard) fn offset(&mut self) -> Option<u64> {
        self.u64().filter(|offset| *offset < 1 << 62)
    }

    pub(in crate::shard) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok()?;
        std::str::from_utf8(self.take(len)?).ok()
    }

    pub(in crate::shard) fn texts(&mut self) -> Option<Vec<Box<str>>> {
        let count = self.u32()?;
        // No allocation ahead of what the bytes can hold.
        let mut texts = Vec::new();
        for _ in 0..count {
            texts.push(self.text()?.into());
        }
        Some(texts)
    }

    pub(in crate::shard) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.bool()? {
            false => Some(None),
            true => read(self).map(Some),
        }
    }

    pub(in crate::shard) fn blob(&mut self) -> Option<BlobRecord<'a>> {
        match self.u8()? {
            0 => Some(BlobRecord::Inline(self.rest())),
            1 => Some(BlobRecord::File {
                id: BlobId(self.take(16)?.try_into().ok()?),
                len: self.offset()?,
            }),
            2 => Some(BlobRecord::Block(self.place()?)),
            _ => None,
        }
    }

    pub(in crate::shard) fn place(&mut self) -> Option<Place> {
        let place = Place {
            segment: SegmentId(self.u64()?),
            offset: self.u32()?,
            len: self.u32()?,
        };
        // What a place says is read at once: no block is longer.
        let is_block = (1..=BLOCK_BYTES_MAX).contains(&(place.len as usize));
        is_block.then_some(place)
    }

    pub(in crate::shard) fn digest(&mut self) -> Option<Digest> {
        self.take(32)?.try_into().ok()
    }

    pub(in crate::shard) fn key(&mut self) -> Option<StreamKey> {
        self.text().map(StreamKey::restored)
    }

    pub(in crate::shard) fn content_type(&mut self) -> Option<ContentType> {
        ContentType::parse(self.text()?.as_bytes())
    }

    pub(in crate::shard) fn lifetime(&mut self) -> Option<Lifetime> {
        let kind = self.u8()?;
        let value = self.u64()?;
        match kind {
            0 if value == 0 => Some(Lifetime::Unlimited),
            1 => Some(Lifetime::Ttl { seconds: value }),
            2 => Some(Lifetime::ExpiresAt { unix_ms: value }),
            _ => None,
        }
    }

    pub(in crate::shard) fn origin(&mut self) -> Option<ForkOrigin> {
        Some(ForkOrigin {
            source: self.key()?,
            incarnation: Incarnation(self.u64()?),
            start: self.offset()?,
            offset: self.offset()?,
            requested: self.option(Reader::u64)?,
            sub_offset: self.u64()?,
        })
    }
}
