//! Routes: what a method and a path ask for, on both surfaces (extensions
//! 1.6; decisions, Two surfaces).

use std::borrow::Cow;

use crate::{
    http::{
        parse::Method,
        target::{Target, TargetError, parse_target, segments},
    },
    protocol::{
        error::Refusal,
        offset,
        stream_key::{StreamKey, Surface, check_bucket},
    },
};

/// What a request addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// OPTIONS of anything.
    Preflight,
    /// PUT of a bucket; changes nothing (extensions 1.2).
    PutBucket,
    /// A stream.
    Stream(StreamKey, Surface, StreamMethod),
    /// `{stream}/snapshot/{offset}`.
    Snapshot(StreamKey, u64, SnapshotMethod),
    /// POST `{stream}/snapshot/{offset}/parts`.
    StagePart(StreamKey),
    /// DELETE `{stream}/snapshot/parts`.
    DiscardParts(StreamKey),
    /// PUT `{stream}/retention/{offset}`.
    Retention(StreamKey, u64),
    /// GET or HEAD `{stream}/bootstrap`.
    Bootstrap(StreamKey),
}

/// What is done to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMethod {
    /// PUT.
    Create,
    /// POST.
    Append,
    /// GET.
    Read,
    /// HEAD.
    Head,
    /// DELETE.
    Delete,
}

/// What is done to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotMethod {
    /// PUT.
    Publish,
    /// GET or HEAD.
    Read,
}

/// A routed target: where it goes, its raw path and query.
#[derive(Clone, Debug)]
pub struct Routed<'b> {
    /// Where it goes.
    pub route: Route,
    /// The path as sent.
    pub path: &'b [u8],
    /// The query as sent.
    pub query: Option<&'b [u8]>,
    /// Host and port of a target in absolute form; they overrule `Host` (RFC 9112 3.2.2).
    pub authority: Option<&'b [u8]>,
}

/// Finds the route of a request.
///
/// # Errors
/// [`Refusal::NotFound`] for an unknown path, [`Refusal::MethodNotAllowed`] for a method the
/// route does not serve, the refusals of names and offsets otherwise.
pub fn route(method: Method, raw_target: &[u8]) -> Result<Routed<'_>, Refusal> {
    let (path, query, authority) = match parse_target(raw_target).map_err(target_refusal)? {
        Target::Asterisk if method == Method::Options => {
            return Ok(Routed {
                route: Route::Preflight,
                path: b"",
                query: None,
                authority: None,
            });
        }
        Target::Asterisk => {
            return Err(Refusal::InvalidRequest(
                "'*' is a target of OPTIONS only".into(),
            ));
        }
        Target::Path {
            path,
            query,
            authority,
        } => (path, query, authority),
    };
    let routed = |route| Routed {
        route,
        path,
        query,
        authority,
    };
    if method == Method::Options {
        return Ok(routed(Route::Preflight));
    }
    if method == Method::Other {
        return Err(Refusal::MethodUnknown);
    }
    if let Some((key, surface)) = plain_stream(path) {
        return Ok(routed(Route::Stream(key, surface, stream_method(method)?)));
    }
    let segments: Vec<Cow<'_, str>> = segments(path)
        .collect::<Result<_, _>>()
        .map_err(target_refusal)?;
    let names: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let route = match names.as_slice() {
        ["v1", "stream", rest @ ..] => {
            let key = StreamKey::base_surface(rest.iter().copied())?;
            Route::Stream(key, Surface::Base, stream_method(method)?)
        }
        [""] => return Err(Refusal::NotFound),
        [bucket] => {
            check_bucket(bucket)?;
            match method {
                Method::Put => Route::PutBucket,
                _ => return Err(not_allowed("PUT")),
            }
        }
        [bucket, stream] => {
            check_bucket(bucket)?;
            if stream.is_empty() {
                return Err(Refusal::NotFound);
            }
            let key = StreamKey::bucket_surface(bucket, stream)?;
            Route::Stream(key, Surface::Bucket, stream_method(method)?)
        }
        [bucket, stream, rest @ ..] => {
            check_bucket(bucket)?;
            subresource(method, rest, || StreamKey::bucket_surface(bucket, stream))?
        }
        [] => return Err(Refusal::NotFound),
    };
    Ok(routed(route))
}

/// The stream of a path as most are, by the quickest way; the others go through the rules.
fn plain_stream(path: &[u8]) -> Option<(StreamKey, Surface)> {
    let (surface, name) = match path.strip_prefix(b"/v1/stream/") {
        Some(name) => (Surface::Base, name),
        None => (Surface::Bucket, path.strip_prefix(b"/")?),
    };
    Some((StreamKey::plain(surface, name)?, surface))
}

fn subresource(
    method: Method,
    rest: &[&str],
    key: impl FnOnce() -> Result<StreamKey, Refusal>,
) -> Result<Route, Refusal> {
    match rest {
        ["bootstrap"] => match method {
            Method::Get | Method::Head => Ok(Route::Bootstrap(key()?)),
            _ => Err(not_allowed("GET, HEAD")),
        },
        ["snapshot"] => Err(Refusal::BareSnapshot),
        ["snapshot", "parts"] => match method {
            Method::Delete => Ok(Route::DiscardParts(key()?)),
            _ => Err(not_allowed("DELETE")),
        },
        ["snapshot", at] => {
            let method = match method {
                Method::Put => SnapshotMethod::Publish,
                Method::Get | Method::Head => SnapshotMethod::Read,
                _ => return Err(not_allowed("PUT, GET, HEAD")),
            };
            Ok(Route::Snapshot(
                key()?,
                offset::parse(at.as_bytes())?,
                method,
            ))
        }
        ["snapshot", at, "parts"] => match method {
            Method::Post => {
                offset::parse(at.as_bytes())?;
                Ok(Route::StagePart(key()?))
            }
            _ => Err(not_allowed("POST")),
        },
        ["retention", at] => match method {
            Method::Put => Ok(Route::Retention(key()?, offset::parse(at.as_bytes())?)),
            _ => Err(not_allowed("PUT")),
        },
        _ => Err(Refusal::NotFound),
    }
}

fn stream_method(method: Method) -> Result<StreamMethod, Refusal> {
    match method {
        Method::Put => Ok(StreamMethod::Create),
        Method::Post => Ok(StreamMethod::Append),
        Method::Get => Ok(StreamMethod::Read),
        Method::Head => Ok(StreamMethod::Head),
        Method::Delete => Ok(StreamMethod::Delete),
        _ => Err(not_allowed("PUT, POST, GET, HEAD, DELETE, OPTIONS")),
    }
}

fn not_allowed(allow: &'static str) -> Refusal {
    Refusal::MethodNotAllowed { allow }
}

/// The stream that `Stream-Forked-From` names: a path on this server, on either surface.
///
/// # Errors
/// [`Refusal::InvalidHeader`] for anything else, and the refusals of names.
pub fn fork_source(value: &[u8]) -> Result<StreamKey, Refusal> {
    let invalid = || {
        Refusal::InvalidHeader(
            "Stream-Forked-From must be the path of a stream on this server".into(),
        )
    };
    if value.first() != Some(&b'/') || memchr::memchr2(b'?', b'#', value).is_some() {
        return Err(invalid());
    }
    match route(Method::Head, value) {
        Ok(Routed {
            route: Route::Stream(key, _, _),
            ..
        }) => Ok(key),
        // It is not this request whose method is wrong.
        Ok(_) | Err(Refusal::MethodNotAllowed { .. } | Refusal::BareSnapshot) => Err(invalid()),
        Err(refusal) => Err(refusal),
    }
}

fn target_refusal(error: TargetError) -> Refusal {
    match error {
        TargetError::Form => Refusal::InvalidRequest("the request target is malformed".into()),
        TargetError::Fragment => {
            Refusal::InvalidRequest("a request target must not have a fragment".into())
        }
        TargetError::Escape => {
            Refusal::InvalidRequest("a '%' in the path must be followed by two hex digits".into())
        }
        TargetError::Utf8 => Refusal::InvalidRequest("the path must be UTF-8 once decoded".into()),
        TargetError::Nul | TargetError::Slash | TargetError::DotDot => {
            Refusal::InvalidStreamId("stream_id must not contain '/', NUL, or '..'".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(method: Method, target: &str) -> Result<Route, Refusal> {
        route(method, target.as_bytes()).map(|routed| routed.route)
    }

    fn key(text: &str) -> StreamKey {
        StreamKey::restored(text)
    }

    #[test]
    fn streams_on_both_surfaces() {
        assert_eq!(
            to(Method::Get, "/demo/hello?offset=1"),
            Ok(Route::Stream(
                key("demo/hello"),
                Surface::Bucket,
                StreamMethod::Read
            ))
        );
        assert_eq!(
            to(Method::Put, "http://h/v1/stream/a/b%20c/d"),
            Ok(Route::Stream(
                key("a/b c/d"),
                Surface::Base,
                StreamMethod::Create
            ))
        );
        assert_eq!(to(Method::Get, "/v1/stream/__ds/x"), Err(Refusal::NotFound));
        assert!(matches!(
            to(Method::Get, "/v1/stream"),
            Err(Refusal::InvalidStreamId(_))
        ));
        assert!(matches!(
            to(Method::Get, "/__ursula/x"),
            Err(Refusal::InvalidBucketId(_))
        ));
        assert!(matches!(
            to(Method::Put, "/v1/x"),
            Err(Refusal::InvalidBucketId(_))
        ));
        assert!(matches!(
            to(Method::Put, "/demo/a%2Fb"),
            Err(Refusal::InvalidStreamId(_))
        ));
        assert_eq!(to(Method::Get, "/"), Err(Refusal::NotFound));
        assert_eq!(to(Method::Get, "/demo/"), Err(Refusal::NotFound));
    }

    #[test]
    fn subresources() {
        assert_eq!(
            to(Method::Put, "/demo/s/snapshot/5"),
            Ok(Route::Snapshot(key("demo/s"), 5, SnapshotMethod::Publish))
        );
        assert_eq!(
            to(Method::Get, "/demo/s/snapshot"),
            Err(Refusal::BareSnapshot)
        );
        assert_eq!(
            to(Method::Get, "/demo/s/snapshot/-1"),
            Err(Refusal::InvalidOffset)
        );
        assert_eq!(
            to(Method::Post, "/demo/s/snapshot/5/parts"),
            Ok(Route::StagePart(key("demo/s")))
        );
        assert_eq!(
            to(Method::Delete, "/demo/s/snapshot/parts"),
            Ok(Route::DiscardParts(key("demo/s")))
        );
        assert_eq!(
            to(Method::Put, "/demo/s/retention/%35"),
            Ok(Route::Retention(key("demo/s"), 5))
        );
        assert_eq!(
            to(Method::Head, "/demo/s/bootstrap"),
            Ok(Route::Bootstrap(key("demo/s")))
        );
        assert!(matches!(
            to(Method::Delete, "/demo/s/snapshot/5"),
            Err(Refusal::MethodNotAllowed {
                allow: "PUT, GET, HEAD"
            })
        ));
        for unknown in [
            "/demo/s/x",
            "/demo/s/attrs",
            "/demo/s/retention",
            "/demo/s/snapshot/1/2/3",
            "/demo/s/bootstrap/",
        ] {
            assert_eq!(
                to(Method::Get, unknown),
                Err(Refusal::NotFound),
                "{unknown}"
            );
        }
    }

    #[test]
    fn methods_and_forms() {
        assert_eq!(to(Method::Options, "*"), Ok(Route::Preflight));
        assert_eq!(to(Method::Other, "/demo/s"), Err(Refusal::MethodUnknown));
        assert!(matches!(
            to(Method::Unserved, "/demo/s"),
            Err(Refusal::MethodNotAllowed { .. })
        ));
        assert!(matches!(
            to(Method::Get, "/demo"),
            Err(Refusal::MethodNotAllowed { allow: "PUT" })
        ));
        assert_eq!(to(Method::Put, "/demo"), Ok(Route::PutBucket));
        assert!(matches!(
            to(Method::Get, "*"),
            Err(Refusal::InvalidRequest(_))
        ));
    }

    #[test]
    fn fork_sources_are_paths_of_this_server() {
        assert_eq!(fork_source(b"/v1/stream/a/b"), Ok(key("a/b")));
        assert_eq!(fork_source(b"/demo/b"), Ok(key("demo/b")));
        for bad in [
            &b"a/b"[..],
            b"",
            b"http://other/demo/b",
            b"/demo/b?x=1",
            b"/demo",
            b"/demo/b/bootstrap",
            b"/demo/b/snapshot",
        ] {
            let refused = fork_source(bad);
            assert!(
                matches!(refused, Err(Refusal::InvalidHeader(_))),
                "{bad:?}: {refused:?}"
            );
        }
    }
}
