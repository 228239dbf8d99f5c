//! The page at `/`: three files that are part of the program and ask nobody
//! else for anything.

/// What the page may do: load its own files and ask its own server. Nothing inline, nothing from
/// elsewhere, in nobody's frame.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// One file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    path: &'static str,
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// The file.
    pub text: &'static str,
}

static PARTS: [Part; 4] = [
    Part {
        path: "/",
        content_type: "text/html; charset=utf-8",
        text: include_str!("page.html"),
    },
    Part {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("page.css"),
    },
    Part {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("page.js"),
    },
    Part {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        text: include_str!("icon.svg"),
    },
];

/// The part at a path, as the request named it.
#[must_use]
pub fn part(path: &[u8]) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.path.as_bytes() == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_its_own_parts() {
        let html = PARTS[0].text;
        for attribute in ["src=\"", "href=\""] {
            for rest in html.split(attribute).skip(1) {
                let named = rest.split('"').next().unwrap();
                let is_own = part(named.as_bytes()).is_some() || named.starts_with('#');
                assert!(is_own || part_of_api(named), "{named}");
            }
        }
        for part in &PARTS {
            let foreign = part.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("://"), "{} names a URL", part.path);
        }
        // Chromium sends `Origin` with modules, also to their own origin, which the plane refuses.
        assert!(!html.contains("type=\"module\""));
        // The policy forbids both.
        assert!(!html.contains("style=") && !html.contains("<style"));
    }

    fn part_of_api(path: &str) -> bool {
        path == "/metrics" || path.starts_with("/__ursula/")
    }
}
