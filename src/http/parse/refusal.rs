//! Every reason to refuse a request before it has a meaning: status, code and words.

#![forbid(unsafe_code)]

/// Why a request was refused before it had a meaning. After each of them the place where the
/// next request would start is unknown or not worth reaching: the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status of the answer.
    pub status: u16,
    /// Code for the error body.
    pub code: &'static str,
    /// What was wrong and what would be right.
    pub message: &'static str,
}

impl Refusal {
    /// No request line (RFC 9112 section 3): garbage, HTTP/0.9, a TLS hello.
    pub const REQUEST_LINE: Self =
        Self::invalid("a request line is `METHOD target HTTP/1.1`, with single spaces");
    /// A bare LF (RFC 9112 section 2.2 would let a server take it).
    pub const LINE_END: Self = Self::invalid("every line of a request head ends in CR LF");
    /// A malformed field line (RFC 9112 section 5).
    pub const FIELD_LINE: Self = Self::invalid(
        "a header field is `name: value` on one line, with no space before the colon and no \
         control characters",
    );
    /// No Host, two, or none that could be one (RFC 9112 section 3.2).
    pub const HOST: Self =
        Self::invalid("an HTTP/1.1 request has exactly one Host field, a host and a port");
    /// A Content-Length that could be read in two ways (RFC 9110 section 8.6).
    pub const LENGTH: Self = Self::invalid("Content-Length must be given once, as decimal digits");
    /// Both framings (RFC 9112 section 6.1).
    pub const LENGTH_AND_CODING: Self =
        Self::invalid("Content-Length and Transfer-Encoding exclude each other");
    /// `chunked` twice or not last, an empty coding, or any on HTTP/1.0 (RFC 9112 section 6.1).
    pub const CODING: Self =
        Self::invalid("Transfer-Encoding must be `chunked`, once, on HTTP/1.1");
    /// A chunk size that is no number of 64 bits (RFC 9112 section 7.1).
    pub const CHUNK_SIZE: Self =
        Self::invalid("a chunk size has 1 to 16 hexadecimal digits, then CR LF");
    /// A chunk-size line that ends wrong (RFC 9112 section 7.1).
    pub const CHUNK_LINE: Self = Self::invalid("a chunk-size line must end in CR LF");
    /// Chunk data longer or shorter than its size (RFC 9112 section 7.1).
    pub const CHUNK_END: Self = Self::invalid("chunk data must be followed by CR LF");
    /// A malformed trailer section (RFC 9112 section 7.1.2).
    pub const TRAILER: Self = Self::invalid(
        "after the last chunk come trailer fields, each `name: value`, and an empty line",
    );
    /// Too much that is no payload.
    pub const BODY_OVERHEAD: Self =
        Self::invalid("the body has too many bytes of chunk extensions or trailers");
    /// A head or body that did not arrive in time; the driver's to use.
    pub const TIMEOUT: Self =
        Self::new(408, "REQUEST_TIMEOUT", "the request did not arrive in time");
    /// A body above its limit; whoever knows the limit may answer with a message that names it.
    pub const BODY_TOO_LARGE: Self = Self::new(
        413,
        "REQUEST_TOO_LARGE",
        "the request body is above the request limit",
    );
    /// A request line above its limit.
    pub const LINE_TOO_LONG: Self = Self::new(
        414,
        "URI_TOO_LONG",
        "the request line is longer than this server accepts",
    );
    /// An expectation that is not 100-continue (RFC 9110 section 10.1.1).
    pub const EXPECTATION: Self = Self::new(
        417,
        "EXPECTATION_FAILED",
        "the only expectation understood is `100-continue`",
    );
    /// A head above its limits (RFC 6585 section 5).
    pub const HEAD_TOO_LARGE: Self = Self::new(
        431,
        "REQUEST_HEAD_TOO_LARGE",
        "the request head has more bytes or more fields than this server accepts",
    );
    /// A coding that is not `chunked` (RFC 9112 section 6.1).
    pub const UNKNOWN_CODING: Self = Self::new(
        501,
        "UNSUPPORTED_TRANSFER_CODING",
        "the only transfer coding understood is `chunked`",
    );
    /// An HTTP version that is neither 1.1 nor 1.0 (RFC 9110 section 15.6.6).
    pub const VERSION: Self = Self::new(
        505,
        "UNSUPPORTED_HTTP_VERSION",
        "this server speaks HTTP/1.1 and HTTP/1.0",
    );

    const fn new(status: u16, code: &'static str, message: &'static str) -> Self {
        Self {
            status,
            code,
            message,
        }
    }

    const fn invalid(message: &'static str) -> Self {
        Self::new(400, "INVALID_REQUEST", message)
    }
}
