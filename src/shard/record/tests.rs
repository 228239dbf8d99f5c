//! Every record reads back as written, and damage is an error.

use super::*;

fn samples() -> Vec<Record<'static>> {
    let incarnation = Incarnation(77);
    let key = StreamKey::restored("demo/é");
    let content_type = ContentType::parse(b"text/plain; charset=utf-8").unwrap();
    vec![
        Record::Create {
            incarnation,
            at_ms: 5,
            key: key.clone(),
            content_type: content_type.clone(),
            lifetime: Lifetime::Ttl { seconds: 9 },
            closed: true,
            origin: Some(ForkOrigin {
                source: key.clone(),
                incarnation: Incarnation(3),
                start: 1,
                offset: 4,
                requested: Some(2),
                sub_offset: 2,
            }),
            body: b"hello",
        },
        Record::Create {
            incarnation,
            at_ms: 5,
            key: key.clone(),
            content_type: content_type.clone(),
            lifetime: Lifetime::Unlimited,
            closed: false,
            origin: None,
            body: b"",
        },
        Record::Append {
            incarnation,
            at_ms: 6,
            start: 5,
            close: false,
            producer: Some(ProducerWrite {
                id: "w".into(),
                epoch: 1,
                seq: 2,
                digest: Some([9; 32]),
            }),
            seq: Some("0001".into()),
            body: b"x",
        },
        Record::Delete {
            incarnation,
            soft: true,
        },
        Record::Retain {
            incarnation,
            at_ms: 7,
            offset: 8,
        },
        Record::Publish {
            incarnation,
            at_ms: 8,
            offset: 3,
            digest: [1; 32],
            content_type: content_type.clone(),
            body: BlobRecord::Inline(b"snap"),
        },
        Record::StagePart {
            incarnation,
            at_ms: 9,
            id: "p1".into(),
            body: BlobRecord::File {
                id: BlobId([7; 16]),
                len: 9,
            },
        },
        Record::CommitParts {
            incarnation,
            at_ms: 10,
            offset: 3,
            digest: [2; 32],
            content_type,
            ids: vec!["p1".into(), "p2".into()],
        },
        Record::DiscardParts {
            incarnation,
            ids: vec![],
        },
        Record::Refer {
            incarnation,
            fork: Incarnation(4),
            fork_key: key,
            start: 0,
        },
        Record::Release {
            incarnation,
            fork: Incarnation(4),
        },
        Record::Fence {
            bucket: "demo".into(),
        },
    ]
}

fn bytes_of(record: &Record<'static>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = record.encode(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn every_record_reads_back_as_written() {
    for record in samples() {
        let bytes = bytes_of(&record);
        let again = Record::decode(&bytes).expect("decodes");
        assert_eq!(format!("{again:?}"), format!("{record:?}"));
    }
}

#[test]
fn damaged_records_are_errors_or_what_somebody_could_have_written() {
    // Each record has one form: nothing in it is passed over.
    let check = |damaged: &[u8]| {
        if let Ok(record) = Record::decode(damaged) {
            let mut again = Vec::new();
            let body = record.encode(&mut again);
            again.extend_from_slice(body);
            assert_eq!(again, damaged, "{record:?}");
        }
    };
    for record in samples() {
        let bytes = bytes_of(&record);
        for cut in 0..bytes.len() {
            check(&bytes[..cut]);
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                check(&damaged);
            }
        }
    }
    assert!(Record::decode(&[]).is_err());
    assert!(Record::decode(&[99, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    let mut trailing = bytes_of(&Record::Release {
        incarnation: Incarnation(1),
        fork: Incarnation(2),
    });
    trailing.push(0);
    assert!(Record::decode(&trailing).is_err());
}

#[test]
fn offsets_and_lengths_that_nothing_reaches_are_malformed() {
    const FAR: u64 = 1 << 62;
    let incarnation = Incarnation(77);
    let file = |len| Record::StagePart {
        incarnation,
        at_ms: 1,
        id: "p".into(),
        body: BlobRecord::File {
            id: BlobId([7; 16]),
            len,
        },
    };
    let retain = |offset| Record::Retain {
        incarnation,
        at_ms: 1,
        offset,
    };
    let append = |start| Record::Append {
        incarnation,
        at_ms: 1,
        start,
        close: false,
        producer: None,
        seq: None,
        body: b"hello",
    };
    let fork = |offset| Record::Create {
        incarnation,
        at_ms: 1,
        key: StreamKey::restored("demo/b"),
        content_type: ContentType::parse(b"text/plain").unwrap(),
        lifetime: Lifetime::Unlimited,
        closed: false,
        origin: Some(ForkOrigin {
            source: StreamKey::restored("demo/a"),
            incarnation: Incarnation(3),
            start: 0,
            offset,
            requested: None,
            sub_offset: 0,
        }),
        // Its end would be beyond 64 bits.
        body: b"hello",
    };
    let all: [&dyn Fn(u64) -> Record<'static>; 4] = [&file, &retain, &append, &fork];
    for record in all {
        assert!(Record::decode(&bytes_of(&record(FAR - 1))).is_ok());
        for far in [FAR, u64::MAX] {
            assert!(Record::decode(&bytes_of(&record(far))).is_err(), "{far}");
        }
    }
}
