//! The files of the page, compiled into the program.

use axum::{Router, http::header::CONTENT_TYPE, routing::get};

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
            let file = ([(CONTENT_TYPE, media_type)], content);
            router.route(path, get(move || async move { file }))
        })
}
