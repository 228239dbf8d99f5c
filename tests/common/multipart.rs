//! A strict reader of `multipart/mixed` bodies (RFC 2046).

/// One part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its `Content-Type`.
    pub content_type: String,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// The boundary a `Content-Type` value names.
#[track_caller]
pub fn boundary(content_type: &str) -> &str {
    content_type
        .strip_prefix("multipart/mixed; boundary=")
        .map(|boundary| boundary.trim_matches('"'))
        .unwrap_or_else(|| panic!("not multipart/mixed with a boundary: {content_type}"))
}

/// Splits `body`; panics on anything RFC 2046 does not allow.
#[track_caller]
pub fn parse(content_type: &str, body: &[u8]) -> Vec<Part> {
    let delimiter = format!("--{}", boundary(content_type)).into_bytes();
    let mut rest = body
        .strip_prefix(delimiter.as_slice())
        .expect("it begins with its boundary");
    let mut parts = Vec::new();
    let between = [b"\r\n", delimiter.as_slice()].concat();
    while rest != b"--\r\n" && rest != b"--" {
        rest = rest.strip_prefix(b"\r\n").expect("CRLF follows a boundary");
        let end = find(rest, &between).expect("a boundary ends every part");
        parts.push(parse_part(&rest[..end]));
        rest = &rest[end + between.len()..];
    }
    parts
}

#[track_caller]
fn parse_part(part: &[u8]) -> Part {
    let end = find(part, b"\r\n\r\n").expect("an empty line ends a part's head");
    let head = std::str::from_utf8(&part[..end]).expect("a part's head is ASCII");
    let content_type = head
        .split("\r\n")
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .expect("every part has a Content-Type")
        .1;
    Part {
        content_type: content_type.to_owned(),
        body: part[end + 4..].to_vec(),
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
