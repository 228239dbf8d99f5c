//! How many nanoseconds does the record of one append cost?
//!
//! Encoded is everything but the body, which the journal takes as a second
//! slice and copies once. `plain` is an append without a producer, `producer` one
//! with id, epoch, number and digest. `decode` is what a start spends on each
//! record beside reading it.
//!
//! Run: `cargo bench --bench record_encode`; what was encoded must decode to the
//! same fields.
//!
//! Fastest of 100 in ns, 30 November 2026, 2 shared cores of a virtual
//! machine with AVX-512, rustc 1.95 without `target-cpu`:
//!
//! | | plain | producer |
//! |---|---|---|
//! | `encode` | 6 | 9 |
//! | `decode` | 69 | 60 |

use divan::{Bencher, black_box};
use thalweg::protocol::incarnation::Incarnation;
use thalweg::protocol::producer::ProducerWrite;
use thalweg::shard::record::Record;

const BODY_BYTES: usize = 256;

fn main() {
    divan::main();
}

fn append(producer: bool, body: &[u8]) -> Record<'_> {
    let write = || ProducerWrite {
        id: "6f1c2a52-4d0e-4c6d-9d7c-1b9a3e0f7c55".into(),
        epoch: 3,
        seq: 184_467,
        digest: Some([5; 32]),
    };
    Record::Append {
        incarnation: Incarnation(0x0123_4567_89ab_cdef),
        at_ms: 1_764_460_800_000,
        start: 1 << 30,
        close: false,
        producer: producer.then(write),
        seq: None,
        body,
    }
}

#[divan::bench(args = ["plain", "producer"])]
fn encode(bencher: Bencher<'_, '_>, case: &str) {
    let body = [7; BODY_BYTES];
    let record = append(case == "producer", &body);
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        black_box(&record).encode(&mut out).len()
    });
    out.extend_from_slice(&body);
    check(&record, &out);
}

#[divan::bench(args = ["plain", "producer"])]
fn decode(bencher: Bencher<'_, '_>, case: &str) {
    let body = [7; BODY_BYTES];
    let record = append(case == "producer", &body);
    let mut bytes = Vec::new();
    let rest = record.encode(&mut bytes);
    bytes.extend_from_slice(rest);
    bencher.bench_local(|| {
        Record::decode(black_box(&bytes))
            .expect("whole")
            .incarnation()
    });
    check(&record, &bytes);
}

fn check(record: &Record<'_>, bytes: &[u8]) {
    let decoded = Record::decode(bytes).expect("a whole record");
    assert_eq!(format!("{decoded:?}"), format!("{record:?}"));
}
