//! What a repair found, and what it cost, in lines for the operator.

use crate::{shard::salvage::Loss, storage::journal::RepairReport};

/// What was found in one shard.
#[derive(Default)]
pub(super) struct Found {
    pub(super) shard: u32,
    pub(super) mended: RepairReport,
    /// There is nothing left of its journal.
    pub(super) empty: bool,
    /// What its checkpoint gave.
    pub(super) entries: u64,
    /// Its checkpoint or its journal cannot stay as they are.
    pub(super) rewrite: bool,
    pub(super) set_aside: usize,
    pub(super) losses: Vec<Loss>,
    /// What is wrong with its files, a line each.
    pub(super) files: Vec<String>,
}

impl Found {
    /// What was found and lost, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let shard = self.shard;
        let mut lines = Vec::new();
        if self.empty && self.entries == 0 {
            lines.push(format!(
                "shard {shard}: nothing is left of its journal, and so of its streams"
            ));
        } else if self.empty {
            lines.push(format!(
                "shard {shard}: nothing is left of its journal: its streams are what its \
                 checkpoint says"
            ));
        }
        for path in &self.mended.made {
            let path = path.display();
            lines.push(format!("shard {shard}: {path} was missing: made anew"));
        }
        for path in &self.mended.headers {
            let path = path.display();
            lines.push(format!(
                "shard {shard}: the first block of {path} was damaged: written again"
            ));
        }
        for (path, end) in &self.mended.lengthened {
            let path = path.display();
            lines.push(format!(
                "shard {shard}: {path} was cut off at byte {end}: what was behind it is lost, and \
                 nothing tells whether that was anything"
            ));
        }
        for lost in &self.mended.lost {
            lines.push(format!(
                "shard {shard}: batches {} to {} do not verify; records lost: {}",
                lost.first, lost.last, lost.records
            ));
        }
        for copy in &self.mended.quarantined {
            let copy = copy.display();
            lines.push(format!(
                "shard {shard}: what was overwritten is kept in {copy}"
            ));
        }
        lines.extend(self.files.iter().cloned());
        lines.extend(self.losses.iter().map(Loss::to_string));
        if self.set_aside > 0 {
            lines.push(format!(
                "shard {shard}: {} whole records that follow what is lost are kept in \
                 shard-{shard}.records of the quarantine",
                self.set_aside
            ));
        }
        lines
    }
}
