//! The parts of a `multipart/mixed` body (RFC 2046), borrowed from it.

/// One part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its content type; empty if it has none.
    pub content_type: &'a [u8],
    /// Its bytes.
    pub body: &'a [u8],
}

/// The boundary that a content type names.
pub fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let text = content_type.strip_prefix(b"multipart/mixed")?;
    let at = memchr::memmem::find(text, b"boundary=")? + b"boundary=".len();
    let value = text[at..].split(|byte| *byte == b';').next()?.trim_ascii();
    let value = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value);
    (!value.is_empty()).then_some(value)
}

/// Hands on each part in order; false if the body is not a whole multipart body with this boundary.
pub fn parts<'a>(body: &'a [u8], boundary: &[u8], mut on_part: impl FnMut(Part<'a>)) -> bool {
    let delimiter = [b"\r\n--", boundary].concat();
    let Some(mut rest) = body.strip_prefix(&delimiter[2..]) else {
        return false;
    };
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return end.trim_ascii().is_empty();
        }
        let Some(after) = rest.strip_prefix(b"\r\n") else {
            return false;
        };
        // A part may have no headers at all; then the empty line comes at once.
        let (head, content) = match after.strip_prefix(b"\r\n") {
            Some(content) => (&after[..0], content),
            None => match memchr::memmem::find(after, b"\r\n\r\n") {
                Some(at) => (&after[..at], &after[at + 4..]),
                None => return false,
            },
        };
        let Some(end) = memchr::memmem::find(content, &delimiter) else {
            return false;
        };
        on_part(Part {
            content_type: content_type(head),
            body: &content[..end],
        });
        rest = &content[end + delimiter.len()..];
    }
}

fn content_type(head: &[u8]) -> &[u8] {
    head.split(|byte| *byte == b'\n')
        .find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            line[..colon]
                .eq_ignore_ascii_case(b"content-type")
                .then(|| line[colon + 1..].trim_ascii())
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Part, boundary, parts};

    #[test]
    fn parts_come_in_order_and_truncations_are_noticed() {
        let body =
            b"--b\r\nContent-Type: x/y\r\n\r\none\r\n--b\r\nContent-Type: z\r\n\r\n\r\n--b--\r\n";
        let mut list = Vec::new();
        assert!(parts(body, b"b", |part| list.push(part)));
        assert_eq!(
            list,
            [
                Part {
                    content_type: b"x/y",
                    body: b"one"
                },
                Part {
                    content_type: b"z",
                    body: b""
                }
            ]
        );
        for end in 0..body.len() - 4 {
            assert!(!parts(&body[..end], b"b", |_| ()), "cut at {end}");
        }
    }

    #[test]
    fn the_boundary_may_be_quoted() {
        assert_eq!(
            boundary(b"multipart/mixed; boundary=ab"),
            Some(b"ab".as_slice())
        );
        assert_eq!(
            boundary(b"multipart/mixed; boundary=\"a b\"; x=y"),
            Some(b"a b".as_slice())
        );
        assert_eq!(boundary(b"text/plain; boundary=ab"), None);
    }
}
