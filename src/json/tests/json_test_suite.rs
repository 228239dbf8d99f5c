//! nst/JSONTestSuite's parsing cases: every `y_` accepted, every `n_` refused,
//! every `i_` as the rule decides.

use std::fs;
use std::path::PathBuf;

use super::{for_every_kernel, oracle, show, stored};
use crate::json::Kernel;

for_every_kernel!(cases_are_decided_by_the_rule);

/// The cases that RFC 8259 leaves open and the rule accepts: numbers of any size and precision,
/// since they are kept as text, and escapes of lone surrogates (JSON Message Text, rule 1).
const ACCEPTED: &[&str] = &[
    "i_number_double_huge_neg_exp",
    "i_number_huge_exp",
    "i_number_neg_int_huge_exp",
    "i_number_pos_double_huge_exp",
    "i_number_real_neg_overflow",
    "i_number_real_pos_overflow",
    "i_number_real_underflow",
    "i_number_too_big_neg_int",
    "i_number_too_big_pos_int",
    "i_number_very_big_negative_int",
    "i_object_key_lone_2nd_surrogate",
    "i_string_1st_surrogate_but_2nd_missing",
    "i_string_1st_valid_surrogate_2nd_invalid",
    "i_string_incomplete_surrogate_and_escape_valid",
    "i_string_incomplete_surrogate_pair",
    "i_string_incomplete_surrogates_escape_valid",
    "i_string_invalid_lonely_surrogate",
    "i_string_invalid_surrogate",
    "i_string_inverted_surrogates_U+1D11E",
    "i_string_lone_second_surrogate",
];

/// Those it refuses.
const REFUSED: &[&str] = &[
    // Not UTF-8 (rule 4): other encodings, stray and missing continuations, surrogates, overlong
    // forms, code points above U+10FFFF.
    "i_string_UTF-16LE_with_BOM",
    "i_string_UTF-8_invalid_sequence",
    "i_string_UTF8_surrogate_U+D800",
    "i_string_invalid_utf-8",
    "i_string_iso_latin_1",
    "i_string_lone_utf8_continuation_byte",
    "i_string_not_in_unicode_range",
    "i_string_overlong_sequence_2_bytes",
    "i_string_overlong_sequence_6_bytes",
    "i_string_overlong_sequence_6_bytes_null",
    "i_string_truncated-utf-8",
    "i_string_utf16BE_no_BOM",
    "i_string_utf16LE_no_BOM",
    // 499 levels in one message (rule 3).
    "i_structure_500_nested_arrays",
    // RFC 8259, section 8.1: a byte order mark is not part of the text.
    "i_structure_UTF-8_BOM_empty_object",
];

fn cases_are_decided_by_the_rule(kernel: Kernel) {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/corpora/json-test-suite");
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("skipped: no {}", folder.display());
        return;
    };
    let mut open = 0;
    for entry in entries {
        let path = entry.expect("a directory entry").path();
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let name = name.expect("a name in UTF-8");
        let body = fs::read(&path).expect("a readable case");
        let accepted = match name.as_bytes() {
            [b'y', b'_', ..] => true,
            [b'n', b'_', ..] => false,
            _ if ACCEPTED.contains(&name) => true,
            _ if REFUSED.contains(&name) => false,
            _ => panic!("{name} is decided by no list"),
        };
        open += usize::from(name.starts_with("i_"));
        let result = stored(kernel, &body);
        assert_eq!(
            result.is_ok(),
            accepted,
            "{name}: {result:?}: {}",
            show(&body)
        );
        assert_eq!(oracle::accepts(&body), accepted, "{name}, by the oracle");
        if let Ok((text, _)) = result {
            assert_eq!(text, oracle::stored(&body), "{name}");
        }
    }
    assert_eq!(
        open,
        ACCEPTED.len() + REFUSED.len(),
        "every open case is listed"
    );
}
