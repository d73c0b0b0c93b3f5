//! The report as a document: well-formed, complete, harmless, and sensible when parts of the run
//! are missing.

use std::{collections::BTreeMap, fs};

use report::{
    CorrectCount, DecodingMode, EnvStepRecord, EpisodeRecord, Evaluation, EvaluationMetrics,
    LearnerStepRecord, MESSY_SCHEMAS_SPLIT, NEW_WORDS_SPLIT, PolicyName, RunInfo, RunRecords,
    RunStatus, StageTime, SuccessRate, TrainingStage, Transcript,
};
use roxmltree::{Document, Node, ParsingOptions};

use crate::{browser, fixture, fixture_path};

/// Parses the page as XML and holds it against the rules that every page keeps.
fn checked<T>(page: &str, look: impl FnOnce(&Document<'_>) -> T) -> T {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    // HTML leaves `meta` open, XML does not.
    let parts = page
        .split_inclusive("<meta")
        .map(str::to_owned)
        .reduce(|page, part| page + &part.replacen('>', "/>", 1));
    let page = &parts.unwrap_or_default();
    let document = Document::parse_with_options(page, options)
        .unwrap_or_else(|e| panic!("not well-formed: {e}"));
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            ALLOWED.split(' ').any(|it| it == name),
            "unexpected element {name}"
        );
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(
                !name.starts_with("on") && !["href", "src", "style"].contains(&name),
                "attribute {name}"
            );
            let number_like =
                ["d", "x", "y", "cx", "cy", "width", "height", "viewBox"].contains(&name);
            assert!(
                !(number_like && (value.contains("NaN") || value.contains("inf"))),
                "{name}={value}"
            );
        }
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("url("));
    look(&document)
}

const ALLOWED: &str = "\
    html head meta title style body main header section footer h1 h2 h3 h4 p small b i q code \
    pre span div dl dt dd ul ol li table thead tbody tr th td figure figcaption details summary \
    svg g path text circle rect";

fn texts<'a>(document: &'a Document<'a>, element: &str) -> Vec<String> {
    let elements = document.descendants().filter(|n| n.has_tag_name(element));
    elements.map(text).collect()
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants()
        .filter_map(|n| n.text().filter(|_| n.is_text()))
        .collect()
}

/// The paragraph under the title says how the start was trained, and where imitation of the oracle
/// ends, so that the title alone does not oversell.
#[test]
fn the_paragraph_of_the_headline_says_what_the_start_was() {
    let mut records = fixture();
    records.info.as_mut().unwrap().warm_start = Some("mixed habits, on purpose".to_owned());
    checked(&report::render(&records), |document| {
        let leads = document
            .descendants()
            .filter(|node| node.attribute("class") == Some("lead"))
            .map(text)
            .collect::<Vec<_>>();
        let [lead] = leads.as_slice() else {
            panic!("{leads:?}");
        };
        for part in [
            "It was trained by mixed habits, on purpose.",
            "imitation of the oracle reaches",
        ] {
            assert!(lead.contains(part), "{lead}");
        }
    });
}

/// No line joins two points that were evaluated before and after the training only.
#[test]
fn two_points_are_not_joined() {
    let page = |records: &RunRecords| {
        let page = report::render(records);
        let at = page.find("Accuracy over training").unwrap();
        let chart = &page[at..at + page[at..].find("</svg>").unwrap()];
        let caption = page.contains("What no line joins was evaluated before and after");
        (chart.matches("class=\"line\"").count(), caption)
    };
    let mut records = fixture();
    let (lines, has_caption) = page(&records);
    assert!(lines > 2 && !has_caption, "{lines}");
    records
        .evaluations
        .retain(|it| it.step == 0 || it.step == 60 || !it.split.starts_with("eval-unseen"));
    let (fewer, has_caption) = page(&records);
    assert_eq!((fewer, has_caption), (lines - 2, true));
}

#[test]
fn the_fixture_gives_the_whole_page() {
    let page = report::render(&fixture());
    checked(&page, |document| {
        assert_eq!(
            texts(document, "h1"),
            ["GRPO raised accuracy on new questions from 39.0 % to 83.5 %"]
        );
        assert_eq!(
            texts(document, "h2"),
            [
                "Accuracy by policy",
                "Learning curves",
                "What changed",
                "The same questions, before and after",
                "Resolved settings"
            ]
        );
        assert_eq!(
            texts(document, "h3"),
            [
                "Accuracy over training",
                "Training reward",
                "Entropy",
                "Completion length",
                "Zero-variance groups",
                "Sampler and learner",
                "Loss",
                "Gradient norm",
                "Learning rate",
                "Supervised training: loss",
                "Supervised training: learning rate",
                "By level",
                "How episodes end",
                "Actions per episode",
                "By database",
                "Time by stage"
            ]
        );
        let rows: Vec<String> = document
            .descendants()
            .filter(|n| n.has_tag_name("th") && n.attribute("scope") == Some("row"))
            .map(text)
            .collect();
        assert_eq!(
            rows,
            [
                "random",
                "base",
                "oracle imitation",
                "warm start",
                "GRPO",
                "oracle"
            ]
        );
    });
}

/// `sqlenv pretrain` writes no `run.json`, and evaluates on splits that runs do not have.
#[test]
fn the_page_of_a_pretraining_says_what_it_was_evaluated_on() {
    let mut records = fixture();
    (records.info, records.transcripts) = (None, Vec::new());
    records.steps.retain(|it| it.stage == TrainingStage::Sft);
    let sample = records.evaluations[0].clone();
    records.evaluations.clear();
    let splits = [NEW_WORDS_SPLIT, MESSY_SCHEMAS_SPLIT, "eval-unseen/domain"];
    for (split, correct) in splits.into_iter().zip(1_u32..) {
        for step in [30, 60] {
            let mut evaluation = Evaluation {
                policy: PolicyName::Base,
                split: split.to_owned(),
                mode: DecodingMode::Greedy,
                step,
                ..sample.clone()
            };
            evaluation.metrics.success.success_rate = f64::from(correct * step as u32) / 240.0;
            records.add(evaluation);
        }
    }
    let page = report::render(&records);
    checked(&page, |document| {
        assert_eq!(
            texts(document, "h1"),
            ["The pretrained policy answers 25.0 % on new words and 75.0 % on new domains"]
        );
    });
    let (_, body) = page.split_once("<body>").unwrap();
    let (body, _) = body.split_once("Resolved settings").unwrap();
    for shown in ["messy schemas", "training step", "Base: the policy after"] {
        assert!(body.contains(shown), "{shown}");
    }
    assert!(!body.contains("GRPO"), "{body}");
}

#[test]
fn writing_gives_the_same_bytes_again() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture_path()).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, dir.path().join(from.file_name().unwrap())).unwrap();
    }
    let path = report::write(dir.path()).unwrap();
    let first = fs::read(&path).unwrap();
    report::write(dir.path()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    assert_eq!(path, dir.path().join("report.html"));
}

#[test]
fn any_part_may_be_missing() {
    let removals: [fn(&mut RunRecords); 9] = [
        |r| r.info = None,
        |r| r.config = None,
        |r| r.steps.clear(),
        |r| r.steps.retain(|s| s.stage == TrainingStage::Sft),
        |r| r.evaluations.clear(),
        |r| r.evaluations.retain(|e| e.policy == PolicyName::WarmStart),
        |r| r.transcripts.clear(),
        |r| r.timing.clear(),
        |r| r.transcripts.retain(|t| t.policy == PolicyName::Grpo),
    ];
    for remove in removals {
        let mut records = fixture();
        remove(&mut records);
        checked(&report::render(&records), |_| ());
    }
    checked(&report::render(&RunRecords::default()), |document| {
        assert_eq!(texts(document, "h1"), ["Nothing has been evaluated yet"]);
        assert!(texts(document, "h2").is_empty());
    });
}

#[test]
fn an_interrupted_run_says_so() {
    let mut records = fixture();
    records.info.as_mut().unwrap().status = RunStatus::Interrupted;
    records.evaluations.retain(|e| e.policy != PolicyName::Grpo);
    records.unreadable = BTreeMap::from([("metrics.jsonl", 1)]);
    checked(&report::render(&records), |document| {
        let said = text(document.root_element());
        assert!(said.contains(
            "The warm start answers 39.0 % of new questions; GRPO has not been evaluated"
        ));
        assert!(said.contains("This run was stopped at GRPO step 60. It can be resumed."));
        assert!(said.contains("1 line of metrics.jsonl could not be read"));
    });
}

/// The layouts of Spider and BIRD have no domains, so their split is not divided.
#[test]
fn new_databases_are_shown_under_both_names_of_their_split() {
    let mut records = fixture();
    for evaluation in &mut records.evaluations {
        if evaluation.split == "eval-unseen/database" {
            "eval-unseen".clone_into(&mut evaluation.split);
        }
    }
    let (undivided, divided) = (report::render(&records), report::render(&fixture()));
    assert!(divided.contains("On new databases it reaches"));
    assert!(undivided == divided, "the pages differ");
}

#[test]
fn a_run_without_questions_of_eval_says_so() {
    let mut records = fixture();
    records.info.as_mut().unwrap().questions.remove("eval");
    records.evaluations.retain(|e| e.split != "eval");
    checked(&report::render(&records), |document| {
        let title = "This run is evaluated on new databases only";
        assert_eq!(texts(document, "h1"), [title]);
        // The means are those of the first column.
        let is_mean = |n: &Node<'_, '_>| n.attribute("class") == Some("figure");
        let cells = document.descendants().filter(|n| n.has_tag_name("td"));
        let means: Vec<String> = cells.filter(is_mean).map(text).collect();
        assert!(
            !means.is_empty() && !means.contains(&"·".to_owned()),
            "{means:?}"
        );
        assert!(!text(document.root_element()).contains("grows with the run"));
    });
    records.evaluations.clear();
    checked(&report::render(&records), |document| {
        let title = "The data have no question of the split eval";
        assert_eq!(texts(document, "h1"), [title]);
    });
}

fn evaluation(policy: PolicyName, correct: u64, low: f64, high: f64) -> Evaluation {
    Evaluation {
        policy,
        policy_version: 0,
        step: 0,
        split: "eval".to_owned(),
        mode: DecodingMode::Greedy,
        metrics: EvaluationMetrics {
            success: SuccessRate {
                questions: 100,
                correct,
                success_rate: correct as f64 / 100.0,
                wilson_low: low,
                wilson_high: high,
            },
            ..EvaluationMetrics::default()
        },
    }
}

#[test]
fn the_headline_claims_only_what_the_intervals_allow() {
    let warm = evaluation(PolicyName::WarmStart, 50, 0.40, 0.60);
    for (grpo, claim) in [
        (
            evaluation(PolicyName::Grpo, 80, 0.71, 0.87),
            "GRPO raised accuracy on new questions from 50.0 % to 80.0 %",
        ),
        (
            evaluation(PolicyName::Grpo, 20, 0.13, 0.29),
            "GRPO lowered accuracy on new questions from 50.0 % to 20.0 %",
        ),
        (
            evaluation(PolicyName::Grpo, 55, 0.45, 0.64),
            "GRPO made no clear difference on new questions: 50.0 % before, 55.0 % after",
        ),
    ] {
        let records = RunRecords {
            evaluations: vec![warm.clone(), grpo],
            ..RunRecords::default()
        };
        checked(&report::render(&records), |document| {
            assert_eq!(texts(document, "h1"), [claim]);
        });
    }
}

#[test]
fn a_run_without_a_warm_start_is_compared_with_its_base() {
    let mut records = fixture();
    records.evaluations.retain(|e| e.policy != PolicyName::Base);
    for evaluation in &mut records.evaluations {
        if evaluation.policy == PolicyName::WarmStart {
            evaluation.policy = PolicyName::Base;
        }
    }
    for transcript in &mut records.transcripts {
        if transcript.policy == PolicyName::WarmStart {
            transcript.policy = PolicyName::Base;
        }
    }
    checked(&report::render(&records), |document| {
        let said = text(document.root_element());
        assert!(said.contains("from 39.0 % to"), "the headline");
        assert!(said.contains("The base: 39.0 %"), "the lead");
        assert!(said.contains("The same questions, before and after"));
        assert!(!said.contains("The warm start"));
    });
}

/// A learner process does not know the gold answers, so its transcripts have none.
#[test]
fn a_gold_answer_is_shown_where_its_sql_is_known() {
    let gold = "<p class=\"gold\">";
    let mut records = fixture();
    for transcript in &mut records.transcripts {
        transcript.gold_answer.clear();
    }
    assert!(report::render(&records).contains(gold));
    for transcript in &mut records.transcripts {
        transcript.gold_sql.clear();
    }
    assert!(!report::render(&records).contains(gold));
}

const HOSTILE: &str = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\" onload=\"x ' ]]> <!-- \u{0}\u{1b}\u{202e}";

fn hostile_info() -> RunInfo {
    let name = || HOSTILE.to_owned();
    RunInfo {
        name: name(),
        status: RunStatus::Running,
        model: name(),
        parameters: u64::MAX,
        dataset: name(),
        data_sha256: name(),
        environment: None,
        databases: u64::MAX,
        questions: BTreeMap::from([(name(), u64::MAX)]),
        eval_queries_in_train: Some(0),
        warm_start: Some("imitation of mixed habits".to_owned()),
        run_seed: u64::MAX,
        version: name(),
        machine: name(),
        command: name(),
        refused_actors: vec![report::RefusedActorRecord {
            id: name(),
            count: u64::MAX,
            reason: name(),
        }],
    }
}

fn hostile_transcript(policy: PolicyName, huge: &str) -> Transcript {
    let name = || HOSTILE.to_owned();
    let mut step = EnvStepRecord {
        completion: Some(name()),
        action_type: name(),
        argument: huge.to_owned(),
        malformed: true,
        result: Some(huge.to_owned()),
        error: Some(name()),
        reward: f64::NAN,
        components: Default::default(),
    };
    step.components.operational = f64::INFINITY;
    Transcript {
        policy,
        gold_sql: huge.to_owned(),
        gold_answer: name(),
        episode: EpisodeRecord {
            question_id: name(),
            question: huge.to_owned(),
            database: name(),
            difficulty: name(),
            correct: true,
            reward: f64::NEG_INFINITY,
            failure: String::new(),
            steps: vec![step; 3],
        },
    }
}

#[test]
fn hostile_content_stays_text() {
    let huge = format!("{HOSTILE}{}", "<td>🦀\n".repeat(50_000));
    let name = || HOSTILE.to_owned();
    let count = CorrectCount {
        questions: 3,
        correct: 7,
    };
    let counts = BTreeMap::from([(name(), count), (String::new(), CorrectCount::default())]);
    let evaluation = |policy| {
        let mut evaluation = evaluation(policy, 3, f64::NAN, f64::INFINITY);
        evaluation.metrics.success.success_rate = f64::NAN;
        evaluation.metrics.by_level = counts.clone();
        evaluation.metrics.by_database = counts.clone();
        evaluation
    };
    let records = RunRecords {
        info: Some(hostile_info()),
        config: Some(huge.clone()),
        steps: vec![LearnerStepRecord {
            step: u64::MAX,
            stage: TrainingStage::Grpo,
            policy_version: 0,
            metrics: BTreeMap::from([
                ("reward".to_owned(), f64::MAX),
                ("reward_std".to_owned(), f64::MAX),
                ("num_tokens".to_owned(), -1.0),
            ]),
        }],
        evaluations: vec![
            evaluation(PolicyName::WarmStart),
            evaluation(PolicyName::Grpo),
        ],
        transcripts: [PolicyName::Random, PolicyName::WarmStart, PolicyName::Grpo]
            .map(|policy| hostile_transcript(policy, &huge))
            .into(),
        timing: [1e300, f64::NAN]
            .map(|seconds| StageTime {
                stage: name(),
                seconds,
            })
            .into(),
        unreadable: BTreeMap::new(),
    };
    let page = report::render(&records);
    checked(&page, |document| {
        assert!(
            text(document.root_element()).contains("<script>alert(1)</script>"),
            "shown as text"
        );
    });
    // The config is shown whole; everything else is cut.
    assert!(page.len() < 2 * 1024 * 1024, "{}", page.len());
}

#[test]
fn failed_episodes_are_noted() {
    let page = |failed| {
        let mut evaluation = evaluation(PolicyName::Grpo, 3, 0.1, 0.5);
        evaluation.metrics.failed = failed;
        report::render(&RunRecords {
            evaluations: vec![evaluation],
            ..RunRecords::default()
        })
    };
    let note = "failed for a reason outside the policy";
    assert!(!page(0).contains(note));
    assert!(page(4).contains("4 of ") && page(4).contains(note));
}

/// The terminal's table has a line of equal width for each policy of the report's. Below it stands
/// which model is called base.
#[test]
fn the_summary_has_a_row_for_each_policy() {
    let summary = report::summary(&fixture());
    let (table, base) = summary.trim_end().rsplit_once('\n').unwrap();
    let model = "embedded (Qwen3 family, 4 layers, width 192)";
    let expected = format!("Base: the model before this run's training ({model}).");
    assert_eq!(base, expected);
    assert!(report::render(&fixture()).contains(&expected));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("new queries, sampled"));
    assert!(
        lines
            .iter()
            .any(|line| line.trim_start().starts_with("GRPO "))
    );
    let width = |line: &str| line.chars().count();
    assert!(
        lines.iter().all(|line| width(line) == width(lines[0])),
        "{summary}"
    );
    assert_eq!(report::summary(&RunRecords::default()), "");
}

#[test]
fn a_browser_finds_nothing_to_complain_about() {
    if !browser::is_wanted("the report was not opened in a browser") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    fs::write(&path, report::render(&fixture())).unwrap();
    let log = dir.path().join("net.json");
    let address = format!("file://{}", path.display());
    let log_argument = format!("--log-net-log={}", log.display());
    let (dom, complaints) = browser::open(&address, &[&log_argument]);
    assert!(!complaints.contains("CONSOLE"), "{complaints}");
    for heading in [
        "Accuracy by policy",
        "Learning curves",
        "What changed",
        "The same questions, before and after",
    ] {
        assert!(dom.contains(heading), "{heading}");
    }
    // What a file:// page asks for has the origin "null"; the browser's own requests have none.
    let requests = fs::read_to_string(&log).unwrap();
    assert!(
        !requests.contains(r#""initiator":"null""#),
        "the page asked for something"
    );
}
