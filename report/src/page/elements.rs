//! Elements that several sections of the page use.

use maud::{Markup, html};

use crate::{
    chart::interval_strip,
    number,
    records::{PolicyName, SuccessRate},
};

/// Returns the style class that gives a policy its colour.
pub(super) fn policy_class(policy: PolicyName) -> &'static str {
    match policy {
        PolicyName::Random => "random",
        PolicyName::Base | PolicyName::Model => "base",
        PolicyName::OracleImitation => "imitation",
        PolicyName::WarmStart => "warm",
        PolicyName::Grpo => "grpo",
        PolicyName::Oracle => "oracle",
    }
}

/// Returns a drawing with its title above and a caption below.
pub(super) fn figure(title: &str, caption: &str, drawing: &Markup) -> Markup {
    html! {
        figure {
            h3 { (title) }
            (drawing)
            @if !caption.is_empty() { figcaption { (caption) } }
        }
    }
}

/// Returns a table's cell of a success rate with its interval. `class` gives it its colour.
pub(crate) fn rate_cell(class: &str, success: &SuccessRate) -> Markup {
    let interval = (success.wilson_low, success.wilson_high);
    html! {
        td.rate title=(rate_in_words(success)) {
            b { (number::percent(success.success_rate)) }
            small { (number::percent(interval.0)) "–" (number::percent(interval.1)) }
            (interval_strip(class, success.success_rate, interval))
        }
    }
}

/// Describes a success rate: `81.3 % (76.5 to 85.3), 244 of 300`.
pub(super) fn rate_in_words(success: &SuccessRate) -> String {
    format!(
        "{} % ({} to {}), {} of {}",
        number::percent(success.success_rate),
        number::percent(success.wilson_low),
        number::percent(success.wilson_high),
        number::count(success.correct),
        number::count(success.questions),
    )
}
