//! The same questions side by side, as random, the warm start and GRPO played them.

use super::{
    episodes::{Change, Played, side_by_side},
    markup::{Element, el},
    policy_class,
};
use crate::folder::RunRecords;
use crate::number;
use crate::records::{PlayedStep, PolicyName, Transcript};

/// Longer texts are cut on the page; the run folder has them whole.
const MOST_CHARACTERS: usize = 700;
const MOST_LINES: usize = 12;
/// Cards unfolded when the page opens.
const UNFOLDED: usize = 2;

pub(super) fn section(records: &RunRecords) -> Option<Element> {
    let all = side_by_side(&records.transcripts);
    if all.is_empty() {
        return None;
    }
    let chosen = Change::ALL.into_iter().flat_map(|change| {
        all.iter()
            .filter(move |p| p.change() == change)
            .take(change.shown())
    });
    let cards = chosen
        .enumerate()
        .map(|(i, played)| card(played, i < UNFOLDED));
    Some(
        el("section")
            .attr("id", "questions")
            .child(el("h2").text("The same questions, before and after"))
            .child(tally(&all))
            .child(el("p").class("caption").text(
                "Shown are up to four questions gained, four lost, two still wrong and two still right: the first of each kind in \
                 the order of the SHA-256 of their ids, an order that nobody chose. Greedy play on new queries.",
            ))
            .children(cards),
    )
}

fn tally(all: &[Played<'_>]) -> Element {
    let count = |change| all.iter().filter(|p| p.change() == change).count() as u64;
    el("p").text(format!(
        "Of {} questions with transcripts, GRPO gained {} and lost {}; {} stayed wrong and {} stayed right.",
        number::count(all.len() as u64),
        number::count(count(Change::Gained)),
        number::count(count(Change::Lost)),
        number::count(count(Change::StillWrong)),
        number::count(count(Change::StillRight)),
    ))
}

fn card(played: &Played<'_>, unfolded: bool) -> Element {
    let change = played.change();
    let asked = played.after;
    let summary = el("summary")
        .child(
            el("span")
                .class(format!("change-{}", change as usize))
                .text(change.name()),
        )
        .child(el("q").text(clip(&asked.question)))
        .child(el("small").text(format!("{} · {}", asked.database, asked.difficulty)));
    let gold = el("p")
        .class("gold")
        .text("Gold: ")
        .child(el("code").text(clip(&asked.gold_sql)))
        .text(" → ")
        .child(el("code").text(clip(&asked.gold_answer)));
    let columns = el("div")
        .class("columns")
        .children(played.random.map(|t| episode(PolicyName::Random, t)))
        .child(episode(PolicyName::WarmStart, played.before))
        .child(episode(PolicyName::Grpo, played.after));
    let card = el("details")
        .class("card")
        .child(summary)
        .child(gold)
        .child(columns);
    if unfolded {
        card.attr("open", "open")
    } else {
        card
    }
}

fn episode(policy: PolicyName, played: &Transcript) -> Element {
    let (class, outcome) = if played.correct {
        ("right", "✓ right")
    } else {
        ("wrong", "✗ wrong")
    };
    el("div")
        .class(format!("episode {}", policy_class(policy)))
        .child(
            el("h4")
                .child(el("span").class("swatch"))
                .text(policy)
                .child(el("span").class(class).text(outcome))
                .child(
                    el("span")
                        .class("reward")
                        .text(number::signed(played.reward)),
                ),
        )
        .child(el("ol").children(played.steps.iter().map(step)))
}

fn step(step: &PlayedStep) -> Element {
    let parts = step.components;
    let title = format!(
        "operational {}, progress {}, terminal {}, clip {}",
        number::signed(parts.operational),
        number::signed(parts.progress),
        number::signed(parts.terminal),
        number::signed(parts.clip),
    );
    let mut item = el("li").child(
        el("p")
            .class("action")
            .child(el("b").text(&step.action_type))
            .child(step.malformed.then(|| el("i").text("malformed call")))
            .child(
                el("span")
                    .class("reward")
                    .attr("title", title)
                    .text(number::signed(step.reward)),
            )
            .child(el("code").text(clip(&step.argument))),
    );
    if let Some(error) = step.error.as_deref().filter(|e| !e.is_empty()) {
        item = item.child(el("pre").class("error").text(clip(error)));
    } else if let Some(result) = step.result.as_deref().filter(|r| !r.is_empty()) {
        item = item.child(el("pre").text(clip(result)));
    }
    item
}

fn clip(text: &str) -> String {
    let mut kept: String = text.lines().take(MOST_LINES).collect::<Vec<_>>().join("\n");
    if kept.chars().count() > MOST_CHARACTERS {
        kept = kept.chars().take(MOST_CHARACTERS).collect();
    }
    if kept.len() < text.trim_end().len() {
        kept += " …";
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_visibly() {
        assert_eq!(clip("short\n"), "short");
        assert_eq!(
            clip(&"é".repeat(1_000)).chars().count(),
            MOST_CHARACTERS + 2
        );
        assert_eq!(clip(&"row\n".repeat(20)).lines().count(), MOST_LINES);
        assert!(clip(&"row\n".repeat(20)).ends_with(" …"));
    }
}
