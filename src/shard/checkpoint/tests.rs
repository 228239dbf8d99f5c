//! An entry reads back as written, and whatever else it says is taken or refused.

use super::*;
use crate::{
    protocol::{
        content_type::ContentType, expiry::Lifetime, fork::ForkOrigin, incarnation::Allocator,
        producer::ProducerWrite, stream_key::StreamKey,
    },
    storage::{
        blob::{BlobId, Graveyard},
        segment::{Place, SegmentGraveyard},
    },
};

const OWN: Incarnation = Incarnation(77);

fn tables() -> Tables {
    Tables::new(Allocator::new([7; 16], 0), Graveyard::default())
}

fn place(offset: u32, len: u32) -> Place {
    Place {
        segment: SegmentId(5),
        offset,
        len,
    }
}

/// A fork with everything that an entry can have.
fn entry() -> Vec<u8> {
    let content_type = ContentType::octet_stream();
    let append = |start, body| Record::Append {
        incarnation: OWN,
        at_ms: 2_000,
        start,
        close: false,
        producer: Some(ProducerWrite {
            id: "p".into(),
            epoch: 0,
            seq: start,
            digest: Some([3; 32]),
        }),
        seq: Some("0001".into()),
        body,
    };
    let records = [
        Record::Create {
            incarnation: OWN,
            at_ms: 1_000,
            key: StreamKey::restored("demo/a"),
            content_type: content_type.clone(),
            lifetime: Lifetime::Ttl { seconds: 9 },
            closed: false,
            origin: Some(ForkOrigin {
                source: StreamKey::restored("demo/b"),
                incarnation: Incarnation(3),
                start: 0,
                offset: 100,
                requested: Some(100),
                sub_offset: 0,
            }),
            body: b"",
        },
        append(100, b"hello"),
        append(105, b"world"),
        append(110, b"again"),
        Record::Publish {
            incarnation: OWN,
            at_ms: 3_000,
            offset: 110,
            digest: [1; 32],
            content_type,
            body: BlobRecord::Block(place(8192, 700)),
        },
        Record::StagePart {
            incarnation: OWN,
            at_ms: 4_000,
            id: "part".into(),
            body: BlobRecord::File {
                id: BlobId([7; 16]),
                len: 1 << 20,
            },
        },
        Record::Refer {
            incarnation: OWN,
            fork: Incarnation(4),
            fork_key: StreamKey::restored("demo/c"),
            start: 104,
        },
    ];
    let mut tables = tables();
    for record in records {
        let mut bytes = Vec::new();
        let body = record.encode(&mut bytes);
        bytes.extend_from_slice(body);
        tables.replay(&bytes).expect("a record");
    }
    let slot = tables.slot_of(OWN).expect("a stream");
    let stream = tables.streams.get_mut(slot).expect("a stream");
    let blocks = [(100, 4096, 5), (105, 4200, 5)];
    let blocks = blocks.map(|(start, offset, len)| Block {
        start,
        place: place(offset, len),
    });
    stream.history.install(blocks.to_vec());
    stream.history.evict_before(110);
    let mut entry = Vec::new();
    encode_stream(stream, Position(9), &mut entry);
    entry
}

/// What an entry makes of new tables, if it is taken.
fn restore(entry: &[u8]) -> Result<Tables, ReplayError> {
    let graveyard = SegmentGraveyard::default();
    let mut segment = |id| Segment::open(id, &graveyard);
    let mut restore = Restore::new(tables(), &mut segment);
    restore.entry(entry)?;
    Ok(restore.finish())
}

#[test]
fn an_entry_reads_back_as_written() {
    let entry = entry();
    let tables = restore(&entry).expect("the entry");
    let mut again = Vec::new();
    let stream = tables.stream(OWN).expect("a stream");
    encode_stream(stream, Position(9), &mut again);
    assert_eq!(again, entry);
}

/// What is taken is what would be written: no bit is read past, such as a flag of a later version.
#[test]
fn no_bit_of_an_entry_is_left_unread() {
    let entry = entry();
    let mut taken = 0;
    for bit in 0..entry.len() * 8 {
        let mut changed = entry.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(tables) = restore(&changed) else {
            continue;
        };
        taken += 1;
        let number = |at: usize| u64::from_le_bytes(changed[at..at + 8].try_into().unwrap());
        let stream = tables.stream(Incarnation(number(1))).expect("a stream");
        let mut again = Vec::new();
        encode_stream(stream, Position(number(9)), &mut again);
        assert!(again == changed, "bit {} of byte {}", bit % 8, bit / 8);
    }
    assert!(taken > 0);
}

#[test]
fn no_number_in_an_entry_overflows_what_is_made_of_it() {
    let entry = entry();
    let mut taken = 0;
    for at in 0..entry.len() - 8 {
        for forged in [u64::MAX, (1 << 62) - 1, u64::from(u32::MAX), 1 << 32, 0] {
            for len in [4, 8] {
                let mut damaged = entry.clone();
                damaged[at..at + len].copy_from_slice(&forged.to_le_bytes()[..len]);
                let Ok(tables) = restore(&damaged) else {
                    continue;
                };
                taken += 1;
                // What a start makes of it.
                let _ = (tables.segment_ends(), tables.blob_files(), tables.forks());
                for stream in tables.all_streams() {
                    let end = stream.history.end();
                    let _ = stream.runs(stream.staged.retained, end, &tables.held);
                    let _ = (stream.own_bytes(), stream.history.len());
                    encode_stream(stream, Position(9), &mut Vec::new());
                }
            }
        }
    }
    assert!(taken > 0);
}
