//! The report for people: what is wrong comes last, where it is read.

use std::fmt;

use bytesize::ByteSize;

use super::report::{
    JournalReport, LifetimeReport, ManifestReport, Report, SegmentsReport, SnapshotReport,
    StreamReport,
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.directory.display())?;
        if let Some(manifest) = &self.manifest {
            writeln!(f, "  {manifest}")?;
        }
        if let Some(user) = &self.in_use_by {
            let who = user.pid.map_or_else(
                || "another process".to_owned(),
                |pid| format!("process {pid}"),
            );
            writeln!(
                f,
                "  in use by {who}: what follows is a picture of a moment; for a certain one stop \
                 it first"
            )?;
        }
        for journal in &self.journals {
            write!(f, "{journal}")?;
        }
        let bytes = &self.bytes;
        writeln!(
            f,
            "bytes: {} live, {} dead, {} made ahead",
            ByteSize(bytes.live),
            ByteSize(bytes.dead),
            ByteSize(bytes.unused)
        )?;
        write_segments(f, &self.segments)?;
        let (files, unnamed) = (self.blobs.files, self.blobs.unnamed.len());
        if files > 0 || unnamed > 0 {
            let size = ByteSize(self.blobs.bytes);
            writeln!(
                f,
                "blobs: {files} files, {size}; {unnamed} more that nothing names"
            )?;
        }
        if !self.fenced_buckets.is_empty() {
            writeln!(f, "purged buckets: {}", self.fenced_buckets.join(", "))?;
        }
        for path in &self.other_layouts {
            writeln!(
                f,
                "does not rule, the next start removes it: {}",
                path.display()
            )?;
        }
        for path in &self.unknown {
            writeln!(f, "not ours: {}", path.display())?;
        }
        if let Some(path) = &self.quarantine {
            writeln!(f, "set aside by repairs: {}", path.display())?;
        }
        write_streams(f, self)?;
        write_verdict(f, self)
    }
}

/// A line for all, and one for each that is half dead or more.
fn write_segments(f: &mut fmt::Formatter<'_>, segments: &SegmentsReport) -> fmt::Result {
    let (files, unnamed) = (segments.files.len(), segments.unnamed.len());
    if files == 0 && unnamed == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "segments: {files} files, {} on disk: {} live, {} dead; {unnamed} more that nothing names",
        ByteSize(segments.disk_bytes),
        ByteSize(segments.live_bytes),
        ByteSize(segments.dead_bytes),
    )?;
    let wasteful = segments.files.iter();
    let mut wasteful = wasteful.filter(|file| file.dead_bytes > file.live_bytes);
    wasteful.try_for_each(|file| {
        let (live, dead) = (ByteSize(file.live_bytes), ByteSize(file.dead_bytes));
        writeln!(f, "  {}: {live} live, {dead} dead", file.name)
    })
}

fn write_streams(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let (shown, total) = (report.streams.len(), report.streams_total);
    match shown < total {
        true => writeln!(
            f,
            "streams: {total}; the first {shown} (--streams N for more)"
        )?,
        false => writeln!(f, "streams: {total}")?,
    }
    report
        .streams
        .iter()
        .try_for_each(|stream| writeln!(f, "  {stream}"))
}

fn write_verdict(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    if report.verified {
        let batches: u64 = report.journals.iter().map(|journal| journal.batches).sum();
        let blocks: usize = report.blocks_total;
        let (segments, files) = (report.segments.files.len(), report.blobs.files);
        return writeln!(
            f,
            "Everything verifies: {batches} batches, {blocks} blocks in {segments} segments, \
             {files} blob files, every checkpoint and snapshot."
        );
    }
    for problem in &report.problems {
        writeln!(f, "PROBLEM: {}: {}", problem.place, problem.what)?;
    }
    writeln!(
        f,
        "Not everything verifies: {} problems.",
        report.problems.len()
    )
}

impl fmt::Display for ManifestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "format {}, layout {} with {} shards, epoch {}",
            self.format_version, self.layout, self.shards, self.epoch
        )
    }
}

/// A line for the journal and one for each of its files that holds something.
impl fmt::Display for JournalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.files.iter().map(|file| file.bytes).sum();
        writeln!(
            f,
            "shard {}: {} streams, {} live; {} records in {} batches, {} of {} in {} files",
            self.shard,
            self.streams,
            ByteSize(self.live_bytes),
            self.records,
            self.batches,
            ByteSize(self.log_bytes),
            ByteSize(total),
            self.files.len(),
        )?;
        if let Some(checkpoint) = &self.checkpoint {
            writeln!(
                f,
                "  checkpoint {}: {} entries, {}; {} records behind it; {} in blocks of {} segments",
                checkpoint.number,
                checkpoint.entries,
                ByteSize(checkpoint.bytes),
                self.records_behind
                    .map_or("?".to_owned(), |records| records.to_string()),
                ByteSize(self.segment_live_bytes),
                self.segments,
            )?;
        }
        if self.lost_records > 0 {
            writeln!(
                f,
                "  {} records were lost before a repair",
                self.lost_records
            )?;
        }
        for file in &self.files {
            let size = ByteSize(file.bytes);
            match (file.batches, file.records) {
                (Some(0), _) => {}
                (Some(batches), Some(records)) => writeln!(
                    f,
                    "  {} {size}: {records} records in {batches} batches",
                    file.name
                )?,
                _ => writeln!(f, "  {} {size}: not read to the end", file.name)?,
            }
        }
        self.cut
            .iter()
            .try_for_each(|cut| writeln!(f, "  {}", cut.what))
    }
}

impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {} to {}, {}",
            self.key, self.incarnation, self.retained, self.tail, self.content_type
        )?;
        if self.blocks > 0 {
            let (blocks, size) = (self.blocks, ByteSize(self.block_bytes));
            write!(f, ", {size} in {blocks} blocks")?;
        }
        if self.closed {
            f.write_str(", closed")?;
        }
        if self.soft_deleted {
            f.write_str(", deleted but inherited from")?;
        }
        match self.lifetime {
            LifetimeReport::Unlimited => {}
            LifetimeReport::Ttl { seconds, .. } => write!(f, ", {seconds} s from its last use")?,
            LifetimeReport::ExpiresAt { ends_ms } => write!(f, ", until Unix ms {ends_ms}")?,
        }
        if let Some(snapshot) = &self.snapshot {
            write!(f, ", {snapshot}")?;
        }
        if self.staged_parts > 0 {
            write!(f, ", {} staged parts", self.staged_parts)?;
        }
        if let Some(origin) = &self.forked_from {
            write!(f, ", forked from {} at {}", origin.key, origin.offset)?;
        }
        if !self.forks.is_empty() {
            write!(f, ", forks: {}", self.forks.join(", "))?;
        }
        if self.producers > 0 {
            write!(f, ", {} producers", self.producers)?;
        }
        Ok(())
    }
}

impl fmt::Display for SnapshotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offset, size) = (self.offset, ByteSize(self.bytes));
        let digest = self.digest.get(..16).unwrap_or(&self.digest);
        let verdict = if self.verified {
            ""
        } else {
            " DOES NOT VERIFY"
        };
        write!(
            f,
            "snapshot at {offset} of {size}, digest {digest}…{verdict}"
        )
    }
}
