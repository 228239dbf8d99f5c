//! JSON Message Text (Extensions, before section 1), JSON stream reads
//! (Extensions 9.4) and the array view (Base 9.1).

use ursula_headers::ErrorCode;

use crate::common::server::Server;
use crate::common::stream::{JSON, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    text_is_kept_but_for_whitespace,
    whitespace_inside_strings_is_kept,
    top_level_arrays_are_flattened_once,
    empty_array_creates_but_does_not_append,
    whatever_rfc_8259_forbids_is_400,
    whatever_rfc_8259_allows_is_taken,
    invalid_utf8_is_400,
    one_bad_message_refuses_the_whole_body,
    depth_is_measured_per_message,
    the_rule_covers_the_creating_body,
    the_rule_covers_content_types_with_parameters,
    reads_are_ndjson_on_the_bucket_surface,
    reads_are_arrays_on_the_base_surface,
    head_names_the_configured_type,
    bucket_reads_cut_at_any_byte,
    base_reads_cut_between_messages,
    base_read_inside_a_message_is_400,
    a_message_larger_than_the_cap_is_whole_on_the_base_surface,
    both_views_show_the_same_messages,
    other_content_types_are_not_json,
];

/// What is stored for `body` in one append.
#[track_caller]
fn stored(server: &Server, body: &str) -> String {
    let stream = Stream::create(server, Surface::Bucket, JSON);
    let answer = stream.append(JSON, body);
    let text = String::from_utf8(stream.read_all()).expect("JSON is UTF-8");
    // Rule 6: offsets refer to the stored text.
    assert_eq!(answer.next_offset(), offset(text.len()));
    text
}

#[track_caller]
fn refused(server: &Server, body: impl AsRef<[u8]>) {
    let shown = String::from_utf8_lossy(body.as_ref()).into_owned();
    for surface in SURFACES {
        let stream = Stream::create(server, surface, JSON);
        let answer = stream
            .post()
            .header("Content-Type", JSON)
            .body(&body)
            .send();
        assert_eq!(answer.status, 400, "for {shown:?}: {answer}");
        assert_eq!(
            answer.error_body().code,
            ErrorCode::InvalidRecordBoundaries,
            "for {shown:?}"
        );
        assert_eq!(
            stream.head().send().next_offset(),
            offset(0),
            "for {shown:?}"
        );
    }
}

/// Rule 2: order, duplicates, numbers, escapes stay; one LF follows. Rule 1: lone surrogates.
fn text_is_kept_but_for_whitespace(server: &Server) {
    for (body, text) in [
        (
            " { \"b\" : 1.50e3 , \"a\" : -0 , \"a\" : 1e400 } ",
            "{\"b\":1.50e3,\"a\":-0,\"a\":1e400}\n",
        ),
        ("{\"s\":\"\\ud800\"}", "{\"s\":\"\\ud800\"}\n"),
        ("\"\\udc00\\ud800\"", "\"\\udc00\\ud800\"\n"),
        ("\"\\u0041\\/\\n\"", "\"\\u0041\\/\\n\"\n"),
        ("\t\r\n7\n", "7\n"),
        ("1.0", "1.0\n"),
        ("1E+2", "1E+2\n"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890\n",
        ),
        ("{\"z\":1,\"y\":2,\"\":3}", "{\"z\":1,\"y\":2,\"\":3}\n"),
        ("{\"a\":[ 1 , [ ] , { } ]}", "{\"a\":[1,[],{}]}\n"),
        ("\"é\u{2028}🦀\u{7f}\"", "\"é\u{2028}🦀\u{7f}\"\n"),
        ("null", "null\n"),
    ] {
        assert_eq!(stored(server, body), text, "for {body:?}");
    }
}

/// Rule 2: insignificant is only what stands outside string literals.
fn whitespace_inside_strings_is_kept(server: &Server) {
    let body = "{ \" a \\\" b \" : \" [ 1 , 2 ] \\\\\" , \"c\":\" \" }";
    assert_eq!(
        stored(server, body),
        "{\" a \\\" b \":\" [ 1 , 2 ] \\\\\",\"c\":\" \"}\n"
    );
}

/// Base 9.1.2: exactly one level.
fn top_level_arrays_are_flattened_once(server: &Server) {
    for (body, text) in [
        (
            "[{\"e\":\"a\"}, {\"e\":\"b\"}]",
            "{\"e\":\"a\"}\n{\"e\":\"b\"}\n",
        ),
        ("[[1,2], [3,4]]", "[1,2]\n[3,4]\n"),
        ("[[[1,2,3]]]", "[[1,2,3]]\n"),
        (" [ 1 , \"a,]b\" , [ ] , null ] ", "1\n\"a,]b\"\n[]\nnull\n"),
        ("[[]]", "[]\n"),
        ("\"[1]\"", "\"[1]\"\n"),
    ] {
        assert_eq!(stored(server, body), text, "for {body:?}");
    }
}

/// Base 9.1.3: `[]` is 400 in an append and no message in a create.
fn empty_array_creates_but_does_not_append(server: &Server) {
    refused(server, "[]");
    refused(server, " [ \n ] ");
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, JSON, " [ ] ");
        assert_eq!(stream.head().send().next_offset(), offset(0));
        // Nor does an empty array close with a message.
        let post = stream
            .post()
            .header("Content-Type", JSON)
            .header("Stream-Closed", "true");
        post.body("[]").send().expect(400);
        stream
            .head()
            .send()
            .expect(200)
            .expect_no_field("stream-closed");
    }
}

/// Rule 1 and 4; protocol case 7: 400, never 500.
fn whatever_rfc_8259_forbids_is_400(server: &Server) {
    for body in [
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{,}",
        "{\"a\":1}}",
        "[1]]",
        "1 2",
        "{}{}",
        "{}\n{}",
        "tru",
        "nul",
        "TRUE",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "\"",
        "\"a",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"\n\"",
        "\"\t\"",
        "\"\0\"",
        "\u{feff}{}",
        "\u{a0}1",
        "\u{c}1",
        "// c\n1",
        "/* c */1",
        "\0",
        "1\0",
        " ",
        "\n",
        "[1",
        "[\"a\"",
        "--1",
        "{\"a\":1,\"b\"",
        "\"a\"b",
        "undefined",
    ] {
        refused(server, body);
    }
}

/// Rule 1: and what it allows is taken.
fn whatever_rfc_8259_allows_is_taken(server: &Server) {
    for body in [
        "0",
        "-0",
        "0.0",
        "-0.0e-0",
        "1e1",
        "1E-1",
        "\"\"",
        "true",
        "false",
        "null",
        "{}",
        "{\"\":0}",
        "{\"a\":{},\"a\":{}}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\uDBFF\\uDFFF\"",
        "\"\u{10ffff}\"",
    ] {
        assert_eq!(stored(server, body), format!("{body}\n"));
    }
}

/// Rule 4: invalid UTF-8 is 400, in strings too.
fn invalid_utf8_is_400(server: &Server) {
    for bytes in [
        b"\"\xff\"".as_slice(),
        b"\"\xc0\x80\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf4\x90\x80\x80\"",
        b"\"\xe2\x82\"",
        b"\"\x80\"",
        b"{\"\xff\":1}",
        b"\xff",
        b"1\xff",
    ] {
        refused(server, bytes);
    }
}

/// Rule 4: no message of a refused request is committed.
fn one_bad_message_refuses_the_whole_body(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, JSON, "[1,2]");
        for body in ["[3,4,tru]", "[3,4", "[{\"a\":1},{\"a\":01}]", "3 4"] {
            stream
                .post()
                .header("Content-Type", JSON)
                .body(body)
                .send()
                .expect(400);
        }
        assert_eq!(stream.head().send().next_offset(), offset(4));
    }
}

/// Rule 3: 127 deep is taken, 128 is 400; an array body may be one level deeper.
fn depth_is_measured_per_message(server: &Server) {
    let arrays = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"k\":".repeat(depth), "}".repeat(depth));
    assert_eq!(stored(server, &objects(127)), format!("{}\n", objects(127)));
    refused(server, objects(128));
    // A body that is an array is flattened: its messages may be 127 deep.
    assert_eq!(stored(server, &arrays(128)), format!("{}\n", arrays(127)));
    refused(server, arrays(129));
    let two = format!("[{}, {}]", objects(127), arrays(127));
    assert_eq!(
        stored(server, &two),
        format!("{}\n{}\n", objects(127), arrays(127))
    );
    refused(server, format!("[1, {}]", objects(128)));
    refused(server, "[".repeat(100_000));
    refused(server, arrays(100_000));
}

/// "It applies to every JSON write": the creating PUT too.
fn the_rule_covers_the_creating_body(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, JSON, "[ {\"a\" : 1.0} , 2 ]");
        assert_eq!(stream.on(Surface::Bucket).read_all(), b"{\"a\":1.0}\n2\n");
        let refused = Stream::absent(server, surface);
        let put = refused.put().header("Content-Type", JSON);
        put.body("{")
            .send()
            .expect_error(400, ErrorCode::InvalidRecordBoundaries);
        refused.head().send().expect(404);
    }
}

/// "to every stream whose content type is application/json (with or without parameters)".
fn the_rule_covers_content_types_with_parameters(server: &Server) {
    for content_type in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;a=b",
    ] {
        let stream = Stream::with_body(server, Surface::Bucket, content_type, "[ 1, 2 ]");
        let answer = stream.get("").send().expect(200).expect_body("1\n2\n");
        answer.expect_field("content-type", "application/x-ndjson");
        let array = stream.on(Surface::Base).get("").send().expect(200);
        assert_eq!(array.text(), "[1,2]");
    }
}

/// Extensions 9.4: stored messages, each followed by one LF.
fn reads_are_ndjson_on_the_bucket_surface(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, JSON);
    let empty = stream.get("").send().expect(200).expect_body("");
    empty.expect_field("content-type", "application/x-ndjson");
    stream.append(JSON, "[{\"a\":1}, 2]");
    for query in ["", "offset=0&live=long-poll"] {
        let answer = stream
            .get(query)
            .send()
            .expect(200)
            .expect_body("{\"a\":1}\n2\n");
        answer.expect_field("content-type", "application/x-ndjson");
    }
    stream.get("offset=now").send().expect(200).expect_body("");
    stream.get("offset=10").send().expect(200).expect_body("");
}

/// Base 9.1.5: one array of all messages; `[]` for none.
fn reads_are_arrays_on_the_base_surface(server: &Server) {
    let stream = Stream::create(server, Surface::Base, JSON);
    stream
        .get("")
        .send()
        .expect(200)
        .expect_body("[]")
        .expect_field("content-type", JSON);
    stream.append(JSON, "[{\"a\": 1}, \"x, y\"]");
    let tail = stream.append(JSON, "3").next_offset();
    let answer = stream
        .get("")
        .send()
        .expect(200)
        .expect_body("[{\"a\":1},\"x, y\",3]");
    assert_eq!(
        answer.expect_field("content-type", JSON).next_offset(),
        tail
    );
    for query in [format!("offset={tail}"), "offset=now".to_owned()] {
        stream
            .get(&query)
            .send()
            .expect(200)
            .expect_body("[]")
            .expect_field("stream-up-to-date", "true");
    }
}

/// Extensions 9.4: HEAD reports the configured content type.
fn head_names_the_configured_type(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, JSON);
        stream
            .head()
            .send()
            .expect(200)
            .expect_field("content-type", JSON);
    }
}

/// Extensions 9.4: `max_bytes` counts stored bytes; an answer may end inside a message.
fn bucket_reads_cut_at_any_byte(server: &Server) {
    let text = "{\"a\":1}\n{\"b\":2}\n";
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[{\"a\":1},{\"b\":2}]");
    for start in 0..=text.len() {
        for length in 1..=text.len() {
            let end = (start + length).min(text.len());
            let answer = stream
                .get(&format!("offset={start}&max_bytes={length}"))
                .send()
                .expect(200);
            let answer = answer.expect_body(&text[start..end]);
            assert_eq!(answer.next_offset(), offset(end));
            assert_eq!(
                answer.header("stream-up-to-date").is_some(),
                end == text.len()
            );
        }
    }
}

/// Decisions, Two surfaces: cut between messages; at least one whole message.
fn base_reads_cut_between_messages(server: &Server) {
    let stream = Stream::with_body(server, Surface::Base, JSON, "[\"aaaa\",\"bbbb\",\"cccc\"]");
    for (max_bytes, body, next) in [
        (0, "[\"aaaa\"]", 7),
        (1, "[\"aaaa\"]", 7),
        (7, "[\"aaaa\"]", 7),
        (13, "[\"aaaa\"]", 7),
        (14, "[\"aaaa\",\"bbbb\"]", 14),
        (20, "[\"aaaa\",\"bbbb\"]", 14),
        (21, "[\"aaaa\",\"bbbb\",\"cccc\"]", 21),
    ] {
        let answer = stream
            .get(&format!("max_bytes={max_bytes}"))
            .send()
            .expect(200)
            .expect_body(body);
        assert_eq!(answer.next_offset(), offset(next));
        assert_eq!(answer.header("stream-up-to-date").is_some(), next == 21);
    }
}

/// Decisions, Two surfaces: a base-surface read that starts inside a message.
fn base_read_inside_a_message_is_400(server: &Server) {
    let stream = Stream::with_body(server, Surface::Base, JSON, "[\"aaaa\",\"bbbb\"]");
    for inside in [1, 6, 8, 13] {
        for live in ["", "&live=long-poll", "&live=sse"] {
            stream
                .get(&format!("offset={inside}{live}"))
                .send()
                .expect_error(400, ErrorCode::NotJsonBoundary);
        }
    }
    stream
        .get("offset=7")
        .send()
        .expect(200)
        .expect_body("[\"bbbb\"]");
}

/// Decisions, Where the sources differ: only the base surface may exceed the cap, for one message
/// that alone is larger; here with the smaller cap of `max_bytes` and one of 5 MiB.
fn a_message_larger_than_the_cap_is_whole_on_the_base_surface(server: &Server) {
    let large = format!("\"{}\"", "m".repeat(5 << 20));
    let stream = Stream::create(server, Surface::Base, JSON);
    for _ in 0..2 {
        stream.append(JSON, &large);
    }
    let capped = stream
        .get("")
        .send()
        .expect(200)
        .expect_no_field("stream-up-to-date");
    assert!(
        capped.text() == format!("[{large}]"),
        "5 MiB twice is above the cap of 8 MiB"
    );
    let whole = stream.get("max_bytes=1000").send().expect(200);
    assert!(
        whole.text() == format!("[{large}]"),
        "one whole message at least"
    );
    let bucket = stream.on(Surface::Bucket).get("").send().expect(200);
    assert_eq!(bucket.body.len(), 8 << 20);
}

/// Rule 5: every read representation carries the stored text unchanged.
fn both_views_show_the_same_messages(server: &Server) {
    let messages = [
        "{\"b\":1.50e3,\"a\":-0}",
        "\"\\ud800\"",
        "1e400",
        "[[],{}]",
        "\"a\\nb\"",
    ];
    let stream = Stream::with_body(
        server,
        Surface::Bucket,
        JSON,
        format!("[{}]", messages.join(" , ")),
    );
    let lines: String = messages
        .iter()
        .map(|message| format!("{message}\n"))
        .collect();
    assert_eq!(String::from_utf8_lossy(&stream.read_all()), lines);
    let array = stream.on(Surface::Base).get("").send().expect(200);
    assert_eq!(array.text(), format!("[{}]", messages.join(",")));
}

/// The rule is for application/json alone.
fn other_content_types_are_not_json(server: &Server) {
    for content_type in [
        TEXT,
        "application/x-ndjson",
        "application/ld+json",
        "application/jsonl",
    ] {
        let stream = Stream::with_body(server, Surface::Base, content_type, "[ 1, ");
        stream
            .get("")
            .send()
            .expect(200)
            .expect_body("[ 1, ")
            .expect_field("content-type", content_type);
    }
}
