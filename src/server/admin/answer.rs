//! An answer of the admin plane: small, whole, never cached.

use std::rc::Rc;

use crate::{
    http::encode::ResponseHead,
    protocol::error::{Refusal, error_body},
    server::core::Core,
};

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Of `body`.
    pub content_type: &'static str,
    /// All of it.
    pub body: String,
    /// The methods there are, on a 405.
    pub allow: Option<&'static str>,
    /// What a page may load (`Content-Security-Policy`).
    pub policy: Option<&'static str>,
}

impl Answer {
    /// A core did not come to it within its patience.
    pub fn busy() -> Self {
        Self::refusing(503, "BUSY", "a core is too busy to lay out its profile")
    }

    /// A refusal of this plane's own.
    pub fn refusing(status: u16, code: &str, message: &str) -> Self {
        Self::json(status, error_body(code, message))
    }

    /// JSON text.
    pub fn json(status: u16, body: String) -> Self {
        Self {
            status,
            content_type: "application/json",
            body,
            allow: None,
            policy: None,
        }
    }

    /// A refusal that clients get, too.
    pub fn refused(refusal: &Refusal) -> Self {
        Self {
            allow: match refusal {
                Refusal::MethodNotAllowed { allow } => Some(allow),
                _ => None,
            },
            ..Self::json(refusal.status(), refusal.body())
        }
    }

    /// Appends it to `out`; without its body for a HEAD.
    pub fn write(&self, is_head: bool, close: bool, core: &Rc<Core>, out: &mut Vec<u8>) {
        let mut head = ResponseHead::new(out, self.status);
        if let Some(date) = core.shared.borrow().date() {
            head.date(date);
        }
        head.header("Cache-Control", b"no-store");
        head.header("X-Content-Type-Options", b"nosniff");
        head.header("Content-Type", self.content_type.as_bytes());
        if let Some(allow) = self.allow {
            head.header("Allow", allow.as_bytes());
        }
        if let Some(policy) = self.policy {
            head.header("Content-Security-Policy", policy.as_bytes());
            head.header("Referrer-Policy", b"no-referrer");
        }
        if close {
            head.close();
        }
        if is_head {
            head.finish_with_length(self.body.len() as u64);
        } else {
            head.finish_with_body(self.body.as_bytes());
        }
    }
}
