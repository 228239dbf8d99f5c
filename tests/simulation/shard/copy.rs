//! A copy of a shard's files while it works, as `thalweg backup` makes one: what it needs stays, and
//! it recovers to what was durable at its cut.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg::base::rng::Rng;
use thalweg::protocol::incarnation::Allocator;
use thalweg::shard::hold::Cut;
use thalweg::shard::recovery::recover;
use thalweg::shard::request::{Reply, Request};
use thalweg::shard::stream::{Blob, Stream, blob_key};
use thalweg::shard::tables::Tables;
use thalweg::storage::blob::Graveyard;
use thalweg::storage::disk::{Disk, SimulatedDisk};
use thalweg::storage::journal::{Options, file_path};
use thalweg::storage::segment::{
    self, BlockKey, BlockReader, Place, Segment, SegmentGraveyard, SegmentId,
};

use super::life::{DIR, DISK_BYTES, JOURNAL_DIR, Life, SEED, SEGMENTS_DIR};
use super::model::Model;
use super::script::turns;

/// A copy that has begun.
pub struct Copying {
    hold: u64,
    cut: Cut,
    /// What was durable then.
    expected: Model,
}

impl Copying {
    pub fn begin(life: &Life) -> Self {
        let hold = life.hold.begin().expect("there is none");
        let cut = match life.shard.execute(Request::Cut(hold)).outcome {
            Ok(Reply::Cut(cut)) => *cut,
            other => panic!("{other:?}"),
        };
        life.hold.open_gate();
        Self {
            hold,
            cut,
            expected: life.visible.borrow().clone(),
        }
    }

    /// Copies file by file, while others work.
    pub async fn finish(self, rng: &mut Rng, life: &Life) {
        let copy = SimulatedDisk::new(rng.next_u64(), DISK_BYTES);
        for dir in [DIR, JOURNAL_DIR, SEGMENTS_DIR] {
            copy.create_dir(Path::new(dir)).await.expect("a directory");
        }
        let (mut missing, journal) = (Vec::new(), self.cut.journal);
        let mut files: Vec<PathBuf> = (journal.first_file..=journal.last_file)
            .map(|number| file_path(Path::new(JOURNAL_DIR), number))
            .collect();
        if let Some(current) = &self.cut.checkpoint {
            files.push(life.identity.path(current.number));
            let bytes = current.to_bytes(&life.identity);
            copy.set_contents(&life.identity.current_path(), bytes);
        }
        let segments = life.disk.list_dir(Path::new(SEGMENTS_DIR)).await;
        let segments = match segments {
            Ok(segments) => segments.into_iter(),
            // The disk fails now and then: no copy.
            Err(error) => {
                assert!(life.faulty.get(), "{error}");
                life.hold.end();
                return;
            }
        };
        files.extend(segments.map(|name| Path::new(SEGMENTS_DIR).join(name)));
        let last = file_path(Path::new(JOURNAL_DIR), journal.last_file);
        for path in files {
            turns(rng.below(60)).await;
            let Some(mut bytes) = life.disk.contents(&path) else {
                missing.push(path);
                continue;
            };
            if path == last {
                bytes[journal.end as usize..].fill(0);
            }
            copy.set_contents(&path, bytes);
        }
        let held = life.hold.holds() == Some(self.hold);
        life.hold.end();
        if !held {
            life.totals.borrow_mut().broken_copies += 1;
            return;
        }
        // A segment's removal may have been under way: then nothing needs it, as is seen below.
        missing.retain(|path| !path.starts_with(SEGMENTS_DIR));
        assert!(missing.is_empty(), "{missing:?} went: {:?}", self.cut);
        self.check(&copy, life).await;
        life.totals.borrow_mut().copies += 1;
    }

    async fn check(&self, copy: &SimulatedDisk, life: &Life) {
        let options = Options {
            epoch: life.options.epoch + 1,
            create: false,
            ..life.options.clone()
        };
        let tables = Tables::new(Allocator::new([3; 16], options.epoch), Graveyard::default());
        let graveyard = SegmentGraveyard::default();
        let mut known: HashMap<SegmentId, Arc<Segment>> = HashMap::new();
        let mut find = |id| segment::intern(&mut known, id, &graveyard);
        let journal_dir = Path::new(JOURNAL_DIR);
        let recovered = recover(
            copy,
            journal_dir,
            &life.identity,
            options,
            tables,
            &mut find,
        );
        let recovered = recovered.await.expect("a copy recovers");
        let tables = recovered.tables;
        self.expected.check_tables(&tables);
        let dir = PathBuf::from(SEGMENTS_DIR);
        let ends = tables.segment_ends();
        let whole = segment::reconcile(copy, &dir, &ends, &known).await;
        whole.expect("every segment is in the copy");
        let reader = BlockReader::new(copy.clone(), dir, SEED, 4);
        for stream in tables.all_streams() {
            for block in blocks(stream) {
                let read = reader.read(&[block]).await;
                assert!(read.is_ok(), "{block:?}: {:?}", read.err());
            }
        }
    }
}

/// The blocks of a stream: of its bytes, its snapshot and its parts.
fn blocks(stream: &Stream) -> Vec<(Place, BlockKey)> {
    let owner = stream.staged.incarnation;
    let data = stream.history.blocks().iter();
    let bodies = stream.all_blobs().filter_map(Blob::place);
    data.map(|block| (block.place, block.key(owner)))
        .chain(bodies.map(|place| (place, blob_key(owner))))
        .collect()
}
