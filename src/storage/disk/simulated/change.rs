//! Changes to a file, and what a crash may leave of one.

use std::collections::BTreeMap;

use crate::base::rng::Rng;

/// What a device writes as a whole or not at all, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

/// A change to a file.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
    Punch { offset: u64, len: u64 },
}

impl Change {
    pub(super) fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let from = *offset as usize;
                let to = from + bytes.len();
                if image.len() < to {
                    image.resize(to, 0);
                }
                image[from..to].copy_from_slice(bytes);
            }
            Self::SetLen(len) => image.resize(*len as usize, 0),
            Self::Punch { offset, len } => {
                let from = (*offset as usize).min(image.len());
                let to = (from + *len as usize).min(image.len());
                image[from..to].fill(0);
            }
        }
    }

    /// As [`Self::apply`], but leaves sectors alone that were durably written after `order`.
    pub(super) fn apply_unless_newer(
        &self,
        image: &mut Vec<u8>,
        order: u64,
        newer: &BTreeMap<usize, u64>,
    ) {
        match self {
            Self::Write { offset, bytes } if !newer.is_empty() => {
                for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    let at = *offset as usize / SECTOR_BYTES + index;
                    if newer.get(&at).is_none_or(|written| *written < order) {
                        let offset = (at * SECTOR_BYTES) as u64;
                        Self::Write {
                            offset,
                            bytes: sector.to_vec(),
                        }
                        .apply(image);
                    }
                }
            }
            _ => self.apply(image),
        }
    }

    /// What a crash leaves of a change: all, nothing, a first part, or any sectors of a write;
    /// all or nothing of others.
    pub(super) fn survivors(self, rng: &mut Rng) -> Vec<Self> {
        let fate = rng.below(4);
        match self {
            _ if fate == 0 => Vec::new(),
            Self::Write { offset, bytes } if fate > 1 => {
                let sectors = bytes.len().div_ceil(SECTOR_BYTES) as u64;
                let (first, odds) = (rng.below(sectors + 1), 1 + rng.below(8));
                let mut parts = Vec::new();
                for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    let survives = if fate == 2 {
                        (index as u64) < first
                    } else {
                        rng.below(8) < odds
                    };
                    if survives {
                        let offset = offset + (index * SECTOR_BYTES) as u64;
                        parts.push(Self::Write {
                            offset,
                            bytes: sector.to_vec(),
                        });
                    }
                }
                parts
            }
            whole => vec![whole],
        }
    }
}
