//! Tests model folders: a saved model opens again, and errors name what is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use policy::{Model, Weights, tiny};

fn open(dir: &Path) -> policy::Result<Model> {
    Model::open(dir, &Device::Cpu, DType::F32)
}

#[test]
fn a_saved_model_opens_again() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("checkpoint");
    let model = tiny::model(7).unwrap();
    // Twice: the second replaces the first.
    model.save(&dir).unwrap();
    fs::write(dir.join("stale"), "of an older model").unwrap();
    model.save(&dir).unwrap();

    let opened = open(&dir).unwrap();
    assert_eq!(opened.config, model.config);
    assert_eq!(
        opened.weights.to_bytes().unwrap(),
        model.weights.to_bytes().unwrap()
    );
    let sorted = |model: &Model| {
        let mut files = model.files.clone();
        files.sort();
        files
    };
    assert_eq!(sorted(&opened), sorted(&model));
    let left: Vec<_> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["checkpoint"]);
    assert!(!dir.join("stale").exists());
}

#[test]
fn the_embedded_policy_has_one_column_a_token() {
    let model = tiny::model(0).unwrap();
    assert_eq!(model.config.vocab_size, model.chat.vocabulary_size());
    assert_eq!(model.config.vocab_size, tiny::VOCABULARY_SIZE);
    // Embedding, six layers (q and o, k and v, gate with up and down, two norms and two head
    // norms), last norm.
    let layer = 2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 320 + 2 * 192 + 2 * 32;
    assert_eq!(model.config.parameters(), 1024 * 192 + 6 * layer + 192);
}

#[test]
fn the_base_policy_has_the_embedded_shape_and_at_most_eight_megabytes() {
    let base = tiny::base().unwrap();
    assert_eq!(base.config, tiny::model(0).unwrap().config);
    let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/embedded/model.safetensors");
    assert!(fs::metadata(stored).unwrap().len() <= 8_000_000);
    let folder = open(Path::new(stored).parent().unwrap()).unwrap();
    assert_eq!(
        folder.weights.to_bytes().unwrap(),
        base.weights.to_bytes().unwrap(),
        "the folder is a model folder"
    );
}

#[test]
fn wrong_folders_are_named() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("model");
    let error = |dir: &Path| open(dir).unwrap_err().to_string();
    assert!(error(&dir).contains("no such folder"), "{}", error(&dir));

    tiny::model(7).unwrap().save(&dir).unwrap();
    for name in [
        "model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "config.json",
    ] {
        fs::remove_file(dir.join(name)).unwrap();
        let message = error(&dir);
        let named = message.contains(name) && message.contains(&dir.display().to_string());
        assert!(named, "{name}: {message}");
    }
}

#[test]
fn weights_of_another_shape_are_refused() {
    let mut files = tiny::files();
    let weights = Weights::random(&tiny::model(0).unwrap().config, 0).unwrap();
    for (name, content) in &mut files {
        if name == "config.json" {
            *content = String::from_utf8_lossy(content)
                .replace("\"hidden_size\": 192", "\"hidden_size\": 96")
                .into_bytes();
        }
    }
    let error = Model::from_files(files, weights).unwrap_err().to_string();
    assert!(error.contains("model.embed_tokens.weight"), "{error}");
}

/// A folder that holds anything but a model is never replaced, and neither are its neighbours.
#[test]
fn saving_destroys_no_other_folder() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny::model(7).unwrap();
    let (taken, old) = (dir.path().join("taken"), dir.path().join("model.old"));
    for folder in [&taken, &old] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("thesis.txt"), "years of work").unwrap();
    }
    let error = model.save(&taken).unwrap_err().to_string();
    assert!(
        error.contains("taken") && error.contains("choose another"),
        "{error}"
    );
    model.save(&dir.path().join("model")).unwrap();
    model.save(&dir.path().join("model")).unwrap();
    for folder in [&taken, &old] {
        assert!(folder.join("thesis.txt").is_file());
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    model.save(&dir.path().join("empty")).unwrap();
}
