//! The answer does not depend on how a body is cut, nor on where it lies.

use super::generate::{self, Random, Space};
use super::{for_every_kernel, oracle, show, stored, stored_from_pieces};
use crate::json::Kernel;

for_every_kernel!(
    every_cut_gives_the_same_answer,
    every_offset_gives_the_same_text,
    random_pieces_give_the_same_answer,
);

/// Documents with every kind of token, valid and not, to be cut within each.
const DOCUMENTS: &[&str] = &[
    r#"[{"key":"v\u00e9\\\"é€😀","n":-12.50E+30,"t":true,"f":false,"z":null},[],{},"",0]"#,
    "  {\"a\" : [ 1 , 2.5 , { \"b\" : null } ] , \"c\" : \"\\ud800\" }  \r\n",
    r#"{"long":"0123456789012345678901234567890123456789012345678901234567890123456789\\"}"#,
    r#"[1,2,nul]"#,
    r#"{"a":1,"b":[1,2}"#,
    r#"{"a":"\u12g4"}"#,
    "\"abc\u{1}\"",
    "[-0.0e-0,01]",
    "[",
    "",
];

fn every_cut_gives_the_same_answer(kernel: Kernel) {
    for document in DOCUMENTS {
        let body = document.as_bytes();
        let expected = stored(kernel, body);
        assert_eq!(expected.is_ok(), oracle::accepts(body), "{document}");
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(
            stored_from_pieces(kernel, &bytes),
            expected,
            "{document}, by bytes"
        );
        for cut in 0..=body.len() {
            let pieces = [&body[..cut], &body[cut..]];
            assert_eq!(
                stored_from_pieces(kernel, &pieces),
                expected,
                "{document}, at {cut}"
            );
        }
    }
    // Invalid UTF-8 within, and a sequence over the cut.
    for body in [
        &b"[\"\xE2\x82\xAC\xE2\x82\"]"[..],
        b"\"\xF0\x9F\x98\x80\x80\"",
    ] {
        let expected = stored(kernel, body);
        for cut in 0..=body.len() {
            let pieces = [&body[..cut], &body[cut..]];
            assert_eq!(stored_from_pieces(kernel, &pieces), expected, "at {cut}");
        }
    }
}

/// Each token of a text meets the end of a block, and of a register.
fn every_offset_gives_the_same_text(kernel: Kernel) {
    let mut random = Random::from_environment();
    for round in 0..40 {
        let body = generate::text(&mut random, 24, Space::Random);
        let expected = oracle::stored(&body);
        for offset in 0..=65 {
            let mut moved = vec![b' '; offset];
            moved.extend_from_slice(&body);
            match stored(kernel, &moved) {
                Ok((text, _)) if text == expected => {}
                other => panic!(
                    "seed {}, round {round}, offset {offset}: {other:?} for {}",
                    random.seed,
                    show(&body)
                ),
            }
        }
    }
}

fn random_pieces_give_the_same_answer(kernel: Kernel) {
    let mut random = Random::from_environment();
    for round in 0..2_000 {
        let mut body = generate::text(&mut random, 30, Space::Random);
        if round % 3 == 0 {
            generate::mutate(&mut random, &mut body);
        }
        let mut pieces = Vec::new();
        let mut rest = &body[..];
        while !rest.is_empty() {
            let most = *random.one_of(&[1, 7, 64, 200]);
            let (piece, behind) = rest.split_at(random.below(most + 1).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        assert_eq!(
            stored_from_pieces(kernel, &pieces),
            stored(kernel, &body),
            "seed {}, round {round}: {}",
            random.seed,
            show(&body)
        );
    }
}
