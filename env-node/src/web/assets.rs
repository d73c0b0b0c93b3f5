//! The files of the page, compiled into the program.
//!
//! Invariant: a browser revalidates each file and loads only changed ones, since the entity tag is
//! a digest of the bytes.

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use sha2::{Digest, Sha256};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, media type and content of every file.
const ASSETS: [(&str, &str, &str); 15] = [
    ("/web/", HTML, include_str!("page.html")),
    ("/web/page.css", CSS, include_str!("page.css")),
    ("/web/icon.svg", SVG, include_str!("icon.svg")),
    ("/web/page.js", SCRIPT, include_str!("page.js")),
    ("/web/api.js", SCRIPT, include_str!("api.js")),
    ("/web/dom.js", SCRIPT, include_str!("dom.js")),
    ("/web/keys.js", SCRIPT, include_str!("keys.js")),
    ("/web/questions.js", SCRIPT, include_str!("questions.js")),
    ("/web/play.js", SCRIPT, include_str!("play.js")),
    ("/web/composer.js", SCRIPT, include_str!("composer.js")),
    ("/web/replay.js", SCRIPT, include_str!("replay.js")),
    ("/web/episode.js", SCRIPT, include_str!("episode.js")),
    ("/web/texts.js", SCRIPT, include_str!("texts.js")),
    ("/web/panels.js", SCRIPT, include_str!("panels.js")),
    (
        "/web/transcripts.js",
        SCRIPT,
        include_str!("transcripts.js"),
    ),
];

/// Serves the page and its files.
pub(super) fn router() -> Router {
    ASSETS
        .into_iter()
        .fold(Router::new(), |router, (path, media_type, content)| {
            let tag = format!("\"{}\"", hex::encode(&Sha256::digest(content)[..8]));
            router.route(
                path,
                get(move |headers: HeaderMap| async move {
                    send(&headers, media_type, content, &tag)
                }),
            )
        })
}

fn send(
    headers: &HeaderMap,
    media_type: &'static str,
    content: &'static str,
    tag: &str,
) -> Response {
    let caching = [(header::ETAG, tag), (header::CACHE_CONTROL, "no-cache")];
    if is_cached(headers, tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(header::CONTENT_TYPE, media_type)], content).into_response()
}

/// Returns whether the browser has this version already.
fn is_cached(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).into_iter();
    tags.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().trim_start_matches("W/"))
        .any(|value| value == tag || value == "*")
}
