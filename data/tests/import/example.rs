//! The worked example of `docs/data.md`.

use std::path::Path;

use data::{AnswerType, Dataset, Manifest, SourceKind};
use serde_json::json;

use crate::Desk;

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

fn import(desk: &Desk) -> data::ImportReport {
    let [books, sensors, questions] =
        ["bookshop.sql", "sensors", "questions.csv"].map(|name| examples().join(name));
    desk.import(&[&books, &sensors], &[&questions]).unwrap()
}

#[test]
fn the_worked_example_is_imported() {
    let desk = Desk::new();
    let report = import(&desk);
    let kinds: Vec<(&str, SourceKind, usize, usize, u64)> = report
        .databases
        .iter()
        .map(|it| (&*it.name, it.kind, it.tables, it.views, it.rows))
        .collect();
    assert_eq!(
        kinds,
        [
            ("bookshop", SourceKind::SqlDump, 3, 1, 16),
            ("sensors", SourceKind::CsvFolder, 2, 0, 8)
        ]
    );
    let [left_out] = report.left_out.as_slice() else {
        panic!("{:?}", report.left_out)
    };
    assert!(left_out.file.ends_with("questions.csv"));
    assert_eq!((left_out.index, left_out.line), (6, Some(9)));
    assert_eq!(
        left_out.reason,
        "the gold SQL returns nothing but NULL or blanks"
    );

    let dataset = Dataset::open(&desk.out(), None).unwrap();
    assert_eq!(dataset.questions.len(), 10);
    let find = |part: &str| {
        let mut questions = dataset.questions.iter();
        questions
            .find(|it| it.question_text.contains(part))
            .unwrap()
    };
    let list = find("from 2015");
    assert_eq!(list.answer_type, AnswerType::List);
    assert_eq!(list.gold_answer, json!(["Nine Orchards", "Salt and Slate"]));
    let joined = find("from Japan");
    assert_eq!(
        (&joined.gold_answer, &*joined.difficulty),
        (&json!(6), "hard")
    );
    assert!(joined.tables_involved.contains(&"copies_sold".to_owned()));
    assert_eq!(find("most expensive").split, "train");
    assert_eq!(find("Map of Rain").split, "eval");
    assert_eq!(
        find("opening day").gold_answer[1],
        json!(["Mill Bridge", "2006-10-12"])
    );
    assert_eq!(find("lowest").gold_answer, json!(-9.0));
}

#[test]
fn the_same_files_give_the_same_folder() {
    let [first, second] = [Desk::new(), Desk::new()];
    assert_eq!(import(&first).manifest, import(&second).manifest);
    // An import replaces an import.
    assert_eq!(
        import(&first).manifest,
        Manifest::read(&second.out()).unwrap()
    );
}

/// Returns the names in the first column of the table below a heading.
fn described(document: &str, heading: &str) -> Vec<String> {
    let section = document
        .split(&format!("\n### {heading}\n"))
        .nth(1)
        .unwrap();
    let section = section.split("\n##").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_document_describes_every_field_of_the_layout() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/data.md");
    let document = std::fs::read_to_string(document).unwrap();
    let desk = Desk::new();
    import(&desk);
    let question = std::fs::read_to_string(desk.out().join("questions/eval.jsonl")).unwrap();
    let question: serde_json::Value =
        serde_json::from_str(question.lines().next().unwrap()).unwrap();
    let manifest = std::fs::read_to_string(desk.out().join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for (heading, object) in [
        ("`questions/*.jsonl`", &question),
        ("`manifest.json`", &manifest),
        ("`databases` in the manifest", &manifest["databases"][0]),
    ] {
        let fields: Vec<&String> = object.as_object().unwrap().keys().collect();
        assert_eq!(
            described(&document, heading).iter().collect::<Vec<_>>(),
            fields,
            "{heading}"
        );
    }
}
