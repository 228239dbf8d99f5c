//! The rule's own words (JSON Message Text, rules 1 to 4), one test per
//! sentence, and what errors say.

use super::{for_every_kernel, stored};
use crate::base::limits::JSON_DEPTH_MAX;
use crate::json::{JsonError, Kernel};

for_every_kernel!(
    text_is_kept_byte_for_byte,
    whitespace_is_dropped_outside_strings_only,
    top_level_arrays_are_flattened_one_level,
    depth_is_measured_per_message,
    nothing_is_empty_and_an_array_of_nothing_is_not,
    errors_say_where_and_what,
    invalid_utf8_is_refused_anywhere,
);

fn text(kernel: Kernel, body: &str) -> String {
    match stored(kernel, body.as_bytes()) {
        Ok((text, _)) => String::from_utf8(text).expect("UTF-8 in, UTF-8 out"),
        Err(error) => panic!("{body}: {error}"),
    }
}

fn error(kernel: Kernel, body: impl AsRef<[u8]>) -> JsonError {
    let body = body.as_ref();
    match stored(kernel, body) {
        Ok(_) => panic!("accepted: {}", super::show(body)),
        Err(error) => error,
    }
}

/// Rule 2, last sentence, and the note on number literals.
fn text_is_kept_byte_for_byte(kernel: Kernel) {
    for body in [
        r#"{"b":1,"a":2,"b":1}"#,
        "1.50e3",
        "1e400",
        "-0",
        "123456789012345678901234567890",
        r#""\u0041\/A\ud800""#,
        r#"{"":{"":[[],{}]}}"#,
        "\"\u{7f}\u{80}\u{ffff}\u{10ffff}\"",
    ] {
        assert_eq!(text(kernel, body), format!("{body}\n"));
    }
}

/// Rule 2: U+0020, U+0009, U+000A and U+000D outside string literals, and no other.
fn whitespace_is_dropped_outside_strings_only(kernel: Kernel) {
    assert_eq!(
        text(kernel, " {\t\"a b\" \n:\r\n [ 1 , 2 ] } \n"),
        "{\"a b\":[1,2]}\n"
    );
    for body in [
        "\u{b}1",
        "1\u{c}",
        "\u{a0}1",
        "\u{feff}1",
        "1\0",
        "1 2",
        "tr ue",
        "- 1",
    ] {
        assert!(
            matches!(error(kernel, body), JsonError::Syntax { .. }),
            "{body:?}"
        );
    }
}

/// Rule 2: "after top-level array flattening".
fn top_level_arrays_are_flattened_one_level(kernel: Kernel) {
    assert_eq!(
        text(kernel, "[1,[2,3],{\"a\":[4,5]}]"),
        "1\n[2,3]\n{\"a\":[4,5]}\n"
    );
    assert_eq!(text(kernel, " [ [ ] ] "), "[]\n");
    assert_eq!(text(kernel, "[[[1]],\"[,]\"]"), "[[1]]\n\"[,]\"\n");
    let many = format!("[{}0]", "1, ".repeat(1000));
    assert_eq!(text(kernel, &many), format!("{}0\n", "1\n".repeat(1000)));
}

/// Rule 3.
fn depth_is_measured_per_message(kernel: Kernel) {
    let nested = |levels: usize| {
        let (open, close) = ("{\"a\":[".repeat(levels / 2), "]}".repeat(levels / 2));
        if levels % 2 == 1 {
            format!("{{\"a\":{open}{close}}}")
        } else {
            format!("{open}{close}")
        }
    };
    let deepest = nested(JSON_DEPTH_MAX);
    let too_deep = nested(JSON_DEPTH_MAX + 1);
    assert_eq!(text(kernel, &deepest), format!("{deepest}\n"));
    assert_eq!(
        text(kernel, &format!("[{deepest},{deepest}]")),
        format!("{deepest}\n{deepest}\n")
    );
    assert!(matches!(error(kernel, &too_deep), JsonError::Depth { .. }));
    let in_array = format!("[1,{too_deep}]");
    let at = 3 + too_deep.rfind('[').expect("an innermost array") as u64;
    assert_eq!(error(kernel, in_array), JsonError::Depth { at });
    // Arrays alone: the outermost is flattened away.
    let arrays = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert_eq!(
        text(kernel, &arrays(JSON_DEPTH_MAX + 1)),
        arrays(JSON_DEPTH_MAX) + "\n"
    );
    let at = JSON_DEPTH_MAX as u64 + 1;
    assert_eq!(
        error(kernel, arrays(JSON_DEPTH_MAX + 2)),
        JsonError::Depth { at }
    );
}

fn nothing_is_empty_and_an_array_of_nothing_is_not(kernel: Kernel) {
    for body in ["", " ", "\n\n", &" ".repeat(1000)] {
        assert_eq!(error(kernel, body), JsonError::Empty, "{body:?}");
    }
    for body in ["[]", " [ ] ", &format!("[{}]", " ".repeat(1000))] {
        assert_eq!(
            stored(kernel, body.as_bytes()),
            Ok((Vec::new(), 0)),
            "{body:?}"
        );
    }
    for body in [
        "[", "{", "\"", "[1,", "{\"a\"", "{\"a\":", "-", "1.", "1e", "tru", "\"\\", "\"\\u00",
    ] {
        assert_eq!(error(kernel, body), JsonError::Truncated, "{body:?}");
        let far = format!("{}{body}", " ".repeat(64 - body.len()));
        assert_eq!(
            error(kernel, far),
            JsonError::Truncated,
            "{body:?}, at the end of a block"
        );
    }
}

fn errors_say_where_and_what(kernel: Kernel) {
    for (body, at, what) in [
        ("[1,,2]", 3, "unexpected ','"),
        ("[1,]", 3, "unexpected ']'"),
        ("{\"a\" 1}", 5, "unexpected value"),
        ("{\"a\",1}", 4, "unexpected ','"),
        ("{1:2}", 1, "unexpected value"),
        ("{\"a\":1,}", 7, "unexpected '}'"),
        ("[1}", 2, "unexpected '}'"),
        ("[1:2]", 2, "unexpected ':'"),
        ("1,2", 1, "unexpected ','"),
        ("[1]]", 3, "unexpected ']'"),
        ("1 \"a\"", 2, "unexpected string"),
        ("01", 1, "invalid number or literal"),
        ("+1", 0, "invalid number or literal"),
        ("[nulL]", 4, "invalid number or literal"),
        ("\"a\u{1}\"", 2, "control character in a string"),
        ("\"\\x\"", 2, "invalid escape in a string"),
        ("\"\\u12g4\"", 5, "invalid escape in a string"),
    ] {
        assert_eq!(
            error(kernel, body),
            JsonError::Syntax { at, what },
            "{body:?}"
        );
        let far = format!("{}{body}", "\r".repeat(1000));
        let at = at + 1000;
        assert_eq!(
            error(kernel, far),
            JsonError::Syntax { at, what },
            "{body:?}, further on"
        );
    }
}

/// Rule 4.
fn invalid_utf8_is_refused_anywhere(kernel: Kernel) {
    for bad in [
        &b"\x80"[..],
        b"\xC3",
        b"\xC0\x80",
        b"\xE0\x80\x80",
        b"\xED\xA0\x80",
        b"\xF4\x90\x80\x80",
        b"\xF0\x80\x80\x80",
        b"\xFF",
        b"\xE2\x82",
        b"\xF0\x9F\x98",
    ] {
        for offset in 0..150 {
            for (before, after) in [("\"", "\""), ("\"a\":", ""), ("", "")] {
                let mut body = vec![b' '; offset];
                body.extend_from_slice(before.as_bytes());
                let at = body.len() as u64;
                body.extend_from_slice(bad);
                body.extend_from_slice(after.as_bytes());
                match (before, error(kernel, &body)) {
                    ("\"" | "", JsonError::Utf8 { at: found }) => assert_eq!(found, at),
                    // Outside of strings no such byte can stand, well-formed or not.
                    ("", JsonError::Syntax { at: found, .. }) => assert_eq!(found, at),
                    ("\"a\":", JsonError::Syntax { at: found, .. }) => assert_eq!(found, at - 1),
                    (_, other) => panic!("{other:?} for {}", super::show(&body)),
                }
            }
        }
    }
}
