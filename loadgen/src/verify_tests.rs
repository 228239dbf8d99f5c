//! Each way a server can spoil a stream must be named, whatever the cuts between reads.

use std::sync::Arc;

use super::{Fault, LaneSeen, Seen, StreamVerifier, Written, reconcile};
use crate::record::{self, Fields, Form};

const SEED: u64 = 11;
const STREAM: u32 = 3;

/// The messages of one lane, each on its own.
fn messages(form: Form, count: u32) -> (Vec<Vec<u8>>, Arc<[u8]>) {
    let filler = record::filler(SEED, 512);
    let mut chain = record::chain_seed(SEED, STREAM, 0);
    let list = (0..count)
        .map(|seq| {
            let mut fields = Fields {
                lane: 0,
                seq,
                sent_ns: u64::from(seq) * 10,
                chain: 0,
                len: 100 + seq,
            };
            fields.chain = record::chain_step(chain, &fields);
            chain = fields.chain;
            let mut out = Vec::new();
            record::render(form, &fields, &filler, &mut out);
            out
        })
        .collect();
    (list, filler)
}

fn faults_of(form: Form, chunks: &[&[u8]], filler: &Arc<[u8]>) -> (Vec<Fault>, StreamVerifier) {
    let mut verifier = StreamVerifier::new(form, SEED, STREAM, filler.clone());
    let mut faults = Vec::new();
    for chunk in chunks {
        verifier.feed(chunk, &mut |_| {}, &mut |fault| faults.push(fault));
    }
    (faults, verifier)
}

#[test]
fn a_whole_stream_passes_at_every_cut() {
    for form in [Form::Bytes, Form::Json] {
        let (list, filler) = messages(form, 4);
        let text = match form {
            Form::Bytes => list.concat(),
            Form::Json => [b"[".as_slice(), &list.join(&b','), b"]"].concat(),
        };
        for cut in 0..=text.len() {
            let (faults, verifier) = faults_of(form, &[&text[..cut], &text[cut..]], &filler);
            assert!(faults.is_empty(), "cut at {cut}: {faults:?}");
            assert_eq!(verifier.messages(), 4);
            assert!(!verifier.inside_message() && !verifier.has_missing());
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(faults_of(form, &bytes, &filler).1.messages(), 4);
    }
}

#[test]
fn each_fault_is_named() {
    let (list, filler) = messages(Form::Json, 4);
    let [a, b, c, d] = [&list[0][..], &list[1][..], &list[2][..], &list[3][..]];
    assert_eq!(
        faults_of(Form::Json, &[a, b, b, c], &filler).0,
        [Fault::Duplicate]
    );
    assert_eq!(
        faults_of(Form::Json, &[a, c, b, d], &filler).0,
        [Fault::Reordered]
    );
    let (faults, gap) = faults_of(Form::Json, &[a, c, d], &filler);
    assert!(faults.is_empty() && gap.has_missing());
    let mut altered = b.to_vec();
    altered[80] ^= 1;
    assert_eq!(
        faults_of(Form::Json, &[a, &altered, c], &filler).0,
        [Fault::Corrupt]
    );
    let mut other_time = b.to_vec();
    other_time[20] = if b[20] == b'1' { b'2' } else { b'1' };
    assert_eq!(
        faults_of(Form::Json, &[a, &other_time, c], &filler).0,
        [Fault::BrokenChain]
    );
    assert_eq!(
        faults_of(Form::Json, &[a, b"?rubbish?", b, c], &filler).0,
        [Fault::Corrupt]
    );
}

#[test]
fn no_input_makes_it_panic() {
    let (list, filler) = messages(Form::Bytes, 3);
    let text = list.concat();
    let mut state = 1u64;
    for _ in 0..2000 {
        let mut spoilt = text.clone();
        for _ in 0..4 {
            state = record::mix(state);
            let at = (state >> 8) as usize % spoilt.len();
            spoilt[at] = state as u8;
        }
        let cut = (state >> 40) as usize % spoilt.len();
        faults_of(Form::Bytes, &[&spoilt[..cut], &spoilt[cut..]], &filler);
    }
}

#[test]
fn a_gap_is_a_fault_unless_its_fate_was_unknown() {
    let written = Written {
        stream: 1,
        lane: 0,
        sent: 10,
        uncertain: vec![4, 9],
    };
    let judge = |missing: Vec<u32>, next| {
        let lanes = vec![LaneSeen {
            next,
            missing,
            missing_more: 0,
        }];
        let seen = Seen {
            stream: 1,
            lanes,
            to_the_end: true,
        };
        let mut faults = Vec::new();
        reconcile(std::slice::from_ref(&written), &[seen], |fault, count| {
            faults.push((fault, count))
        });
        faults
    };
    assert_eq!(judge(vec![4], 9), []);
    assert_eq!(judge(vec![4, 5], 10), [(Fault::Gap, 1)]);
    assert_eq!(judge(vec![], 8), [(Fault::Lost, 1)]);
    let nothing = Seen {
        stream: 1,
        lanes: Vec::new(),
        to_the_end: true,
    };
    reconcile(&[written], &[nothing], |fault, count| {
        assert_eq!((fault, count), (Fault::Lost, 8))
    });
}
