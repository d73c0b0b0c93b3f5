//! Settings of the page.

use std::path::PathBuf;

use axum::http::HeaderValue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::error::SettingError;

/// Settings of the page. Every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// Whether `/web` and OpenEnv's web routes are served.
    #[default(true)]
    pub enabled: bool,
    /// Origins, such as `https://huggingface.co`, whose pages may show this one and `/docs` in a
    /// frame.
    pub frame_ancestors: Vec<String>,
    /// Whether the page shows the gold answer of an episode that has ended. Anyone who may call the
    /// node can then end an episode to learn its answer.
    #[default(true)]
    pub gold_answers: bool,
    /// Folder with run folders, whose episodes the page lists and replays. Their transcripts have
    /// gold answers. Default: none is served.
    pub runs_dir: Option<PathBuf>,
}

impl WebConfig {
    pub(crate) fn validate(&self) -> Result<(), SettingError> {
        SettingError::unless(
            self.frame_ancestors.iter().all(|origin| is_origin(origin)),
            "web.frame_ancestors",
            "give origins such as https://huggingface.co",
        )
    }

    pub(crate) fn check_paths(&self) -> Result<(), SettingError> {
        SettingError::unless(
            self.runs_dir.as_ref().is_none_or(|folder| folder.is_dir()),
            "web.runs_dir",
            "give a folder that has run folders, such as runs",
        )
    }

    /// Returns the policy that lets the browser run and load only what this server sends, and talk
    /// only to this server. Trusted types make the browser refuse markup made from text, so that
    /// names and values of a database cannot become elements or scripts.
    pub(super) fn content_security_policy(&self) -> HeaderValue {
        let ancestors = self.frame_sources();
        let policy = format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors {ancestors}; require-trusted-types-for 'script'; \
             trusted-types 'none'"
        );
        HeaderValue::try_from(policy).expect("origins are checked by validate: this is a bug")
    }

    /// Returns the value of a policy's `frame-ancestors`: who may show a page in a frame.
    pub(crate) fn frame_sources(&self) -> String {
        match self.frame_ancestors.as_slice() {
            [] => "'none'".to_owned(),
            origins => origins.join(" "),
        }
    }
}

/// Returns whether a text is a scheme, a host and perhaps a port, without anything that could begin
/// another directive of the policy.
fn is_origin(text: &str) -> bool {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:*[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_for_listed_origins() {
        let of = |origins: &[&str]| WebConfig {
            frame_ancestors: origins.iter().map(ToString::to_string).collect(),
            ..WebConfig::default()
        };
        let policy = |origins: &[&str]| of(origins).content_security_policy();
        let has = |policy: HeaderValue, part: &str| policy.to_str().unwrap().contains(part);
        assert!(has(policy(&[]), "; frame-ancestors 'none'; "));
        let two = ["https://huggingface.co", "http://[::1]:8000"];
        assert!(of(&two).validate().is_ok());
        assert!(has(
            policy(&two),
            "; frame-ancestors https://huggingface.co http://[::1]:8000; "
        ));
        for bad in [
            "",
            "*",
            "huggingface.co",
            "https://",
            "https://a; script-src *",
            "https://a b",
            "https://ä",
        ] {
            let message = of(&[bad]).validate().unwrap_err().to_string();
            assert!(message.contains("web.frame_ancestors"), "{bad}: {message}");
        }
    }
}
