//! Records of the journal: what is decoded is what was encoded.

use thalweg::shard::record::Record;

use super::{Target, kind, magnitude, to_vecs};

/// The target.
pub const RECORD: Target = Target {
    name: "record",
    seeds,
    words: &[
        b"\0",
        b"\x01",
        b"\x02",
        b"\0\0\0",
        b"\0\0\0\0\0\0\0",
        b"\x01\0\0\0",
        b"\xff\xff\xff\xff",
        b"a/b",
        b"\x05",
        b"\x06",
        b"\x07",
        b"\x08",
        b"\x09",
        b"\x0a",
        b"\x0b",
    ],
    check,
};

fn seeds() -> Vec<Vec<u8>> {
    to_vecs(&[
        b"\x01\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x03\0\0\0a/b\x03\0\0\0c/d\0\0\0body",
        b"\x02\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x01\0\0\0p\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x01\x01\0\0\0sbody",
        b"\x03\x05\0\0\0\0\0\0\0\x01",
        b"\x04\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0",])
}

fn check(input: &[u8]) -> u64 {
    let record = match Record::decode(input) {
        Ok(record) => record,
        Err(malformed) => return kind((format!("{malformed:?}"), magnitude(input.len()))),
    };
    let encoded = encode(&record);
    assert_eq!(encoded.len(), input.len());
    let again = Record::decode(&encoded).expect("what is encoded is decoded");
    // Some bytes of the input may mean nothing, but not what they stand for.
    assert_eq!(format!("{again:?}"), format!("{record:?}"));
    assert_eq!(encode(&again), encoded);
    for short in 0..encoded.len().min(9) {
        assert!(Record::decode(&encoded[..short]).is_err(), "{short} bytes");
    }
    // Its form: which variant, and which fields are there.
    let form = format!("{record:?}");
    kind((input.first(), form.matches("Some(").count()))
}

fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut head = Vec::new();
    let body = record.encode(&mut head);
    [&head, body].concat()
}
