//! Questions with the transcripts of random, the start of GRPO and GRPO side by side.
//!
//! Invariant: the choice of questions depends only on results and ids, so nobody can select
//! favourable ones.

use std::collections::BTreeMap;

use maud::{Markup, html};
use sha2::{Digest, Sha256};

use super::{elements::policy_class, evaluations::Evaluations};
use crate::{
    number,
    records::{EnvStepRecord, EpisodeRecord, PolicyName, Transcript},
    run_records::RunRecords,
};

/// The page cuts longer texts; the run folder has the whole texts.
const MAX_CHARACTERS: usize = 700;
const MAX_LINES: usize = 12;
/// Questions that are open when the page opens.
const OPEN_QUESTIONS: usize = 2;

/// How the result of a question changed by GRPO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultChange {
    Gained,
    Lost,
    StillWrong,
    StillRight,
}

impl ResultChange {
    /// Every change with its name and the number of questions that are shown.
    const ALL: [(Self, &str, usize); 4] = [
        (Self::Gained, "gained", 4),
        (Self::Lost, "lost", 4),
        (Self::StillWrong, "still wrong", 2),
        (Self::StillRight, "still right", 2),
    ];
}

/// The transcripts of one question.
struct QuestionComparison<'a> {
    random: Option<&'a Transcript>,
    start: &'a Transcript,
    grpo: &'a Transcript,
}

impl QuestionComparison<'_> {
    fn change(&self) -> ResultChange {
        match (self.start.episode.correct, self.grpo.episode.correct) {
            (false, true) => ResultChange::Gained,
            (true, false) => ResultChange::Lost,
            (false, false) => ResultChange::StillWrong,
            (true, true) => ResultChange::StillRight,
        }
    }
}

/// Returns the questions that have transcripts of the policy from which GRPO started and of GRPO,
/// ordered by the SHA-256 of their ids.
fn comparisons(start: PolicyName, transcripts: &[Transcript]) -> Vec<QuestionComparison<'_>> {
    let of = |policy: PolicyName| -> BTreeMap<&str, &Transcript> {
        let of_policy = transcripts.iter().filter(|t| t.policy == policy);
        of_policy
            .map(|t| (t.episode.question_id.as_str(), t))
            .collect()
    };
    let (random, start) = (of(PolicyName::Random), of(start));
    let mut all: Vec<_> = of(PolicyName::Grpo)
        .into_iter()
        .filter_map(|(id, grpo)| {
            Some(QuestionComparison {
                random: random.get(id).copied(),
                start: start.get(id)?,
                grpo,
            })
        })
        .collect();
    let hash = |id: &str| <[u8; 32]>::from(Sha256::digest(id));
    all.sort_by_cached_key(|comparison| hash(&comparison.grpo.episode.question_id));
    all
}

pub(super) fn section(records: &RunRecords) -> Option<Markup> {
    let start = Evaluations(&records.evaluations).start();
    let all = comparisons(start, &records.transcripts);
    if all.is_empty() {
        return None;
    }
    let with = |change| {
        all.iter()
            .filter(move |comparison| comparison.change() == change)
    };
    let count = |change| number::count(with(change).count() as u64);
    let shown = ResultChange::ALL
        .into_iter()
        .flat_map(|(change, name, shown)| with(change).take(shown).map(move |c| (name, c)));
    Some(html! {
        section #questions {
            h2 { "The same questions, before and after" }
            p {
                "Of " (number::count(all.len() as u64)) " questions with transcripts, GRPO gained "
                (count(ResultChange::Gained)) " and lost " (count(ResultChange::Lost)) "; "
                (count(ResultChange::StillWrong)) " stayed wrong and "
                (count(ResultChange::StillRight)) " stayed right."
            }
            p.caption {
                "Up to four questions gained, four lost, two still wrong and two still right: the "
                "first of each kind in the order of the SHA-256 of their ids, so that nobody "
                "selects them. Greedy decoding on new queries."
            }
            @for (i, (name, comparison)) in shown.enumerate() {
                (card(comparison, name, i < OPEN_QUESTIONS))
            }
        }
    })
}

fn card(comparison: &QuestionComparison<'_>, change: &str, is_open: bool) -> Markup {
    let kind = comparison.change() as usize;
    let Transcript {
        gold_sql,
        gold_answer,
        episode: question,
        ..
    } = comparison.grpo;
    html! {
        details.card open=[is_open.then_some("open")] {
            summary {
                span.{ "change-" (kind) } { (change) }
                q { (clip(&question.question)) }
                small { (question.database) " · " (question.difficulty) }
            }
            // A learner process does not know the gold answers. An empty gold answer has its SQL.
            @if !gold_sql.is_empty() {
                p.gold { "Gold: " code { (clip(gold_sql)) } " → " code { (clip(gold_answer)) } }
            }
            div.columns {
                @if let Some(random) = comparison.random { (column(random)) }
                (column(comparison.start))
                (column(comparison.grpo))
            }
        }
    }
}

fn column(transcript: &Transcript) -> Markup {
    let Transcript {
        policy, episode, ..
    } = transcript;
    html! {
        div.episode.(policy_class(*policy)) {
            h4 {
                span.swatch {}
                (policy)
                (verdict(episode))
                span.reward { (number::signed(episode.reward, 2)) }
            }
            (env_steps(episode))
        }
    }
}

/// Tells whether the answer was right, or that the episode failed.
pub(crate) fn verdict(episode: &EpisodeRecord) -> Markup {
    html! {
        @if !episode.failure.is_empty() {
            span.wrong { "failed" }
        } @else if episode.correct {
            span.right { "✓ right" }
        } @else {
            span.wrong { "✗ wrong" }
        }
    }
}

/// Shows the env steps, after the reason of a failure.
pub(crate) fn env_steps(episode: &EpisodeRecord) -> Markup {
    html! {
        @if !episode.failure.is_empty() { p.note { (clip(&episode.failure)) } }
        ol { @for step in &episode.steps { (env_step(step)) } }
    }
}

fn env_step(step: &EnvStepRecord) -> Markup {
    let parts = step.components;
    let title = format!(
        "operational {}, progress {}, terminal {}, clip {}",
        number::signed(parts.operational, 2),
        number::signed(parts.progress, 2),
        number::signed(parts.terminal, 2),
        number::signed(parts.clip, 2),
    );
    let error = step.error.as_deref().filter(|text| !text.is_empty());
    let result = step.result.as_deref().filter(|text| !text.is_empty());
    html! {
        li {
            p.action {
                b { (step.action_type) }
                @if step.malformed { i { "malformed call" } }
                span.reward title=(title) { (number::signed(step.reward, 2)) }
                code { (clip(&step.argument)) }
            }
            @if let Some(error) = error {
                pre.error { (clip(error)) }
            } @else if let Some(result) = result {
                pre { (clip(result)) }
            }
        }
    }
}

pub(crate) fn clip(text: &str) -> String {
    let mut lines = text.trim_end().lines();
    let mut kept: String = lines
        .by_ref()
        .take(MAX_LINES)
        .collect::<Vec<_>>()
        .join("\n");
    let mut is_cut = lines.next().is_some();
    if let Some((end, _)) = kept.char_indices().nth(MAX_CHARACTERS) {
        kept.truncate(end);
        is_cut = true;
    }
    if is_cut {
        kept += " …";
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::transcript;

    #[test]
    fn long_texts_are_cut_visibly() {
        assert_eq!(clip("short\n"), "short");
        assert_eq!(clip(&"é".repeat(1_000)).chars().count(), MAX_CHARACTERS + 2);
        assert_eq!(clip(&"row\n".repeat(20)).lines().count(), MAX_LINES);
        assert!(clip(&"row\n".repeat(20)).ends_with(" …"));
    }

    #[test]
    fn only_questions_with_both_transcripts_are_compared() {
        let all = [
            transcript(PolicyName::Random, "a", false, vec![]),
            transcript(PolicyName::WarmStart, "a", false, vec![]),
            transcript(PolicyName::Grpo, "a", true, vec![]),
            transcript(PolicyName::Grpo, "b", true, vec![]),
        ];
        let found = comparisons(PolicyName::WarmStart, &all);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].change(), ResultChange::Gained);
        assert!(found[0].random.is_some());
    }
}
