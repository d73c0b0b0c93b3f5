//! Tests model folders: a saved model opens again, and errors name what is wrong.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use policy::{Chat, Model, Weights, embedded};

fn open(dir: &Path) -> policy::Result<Model> {
    Model::open(dir, &Device::Cpu, DType::F32)
}

#[test]
fn a_saved_model_opens_again() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("checkpoint");
    let model = embedded::model(7).unwrap();
    // Twice: the second replaces the first.
    model.save(&dir).unwrap();
    for stale in ["merges.txt", "README.md"] {
        fs::write(dir.join(stale), "of an older model").unwrap();
    }
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
    assert!(!dir.join("merges.txt").exists() && !dir.join("README.md").exists());
}

#[test]
fn a_chat_opens_without_the_weights() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("model");
    let model = embedded::model(7).unwrap();
    model.save(&dir).unwrap();
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    let chat = Chat::open(&dir).unwrap();
    assert_eq!(chat.vocabulary_size(), model.chat.vocabulary_size());
    fs::remove_file(dir.join("tokenizer.json")).unwrap();
    let refusal = Chat::open(&dir).unwrap_err().to_string();
    let file = dir.join("tokenizer.json").display().to_string();
    assert!(refusal.contains(&file), "{refusal}");
}

#[test]
fn the_embedded_policy_has_one_column_a_token() {
    let model = embedded::model(0).unwrap();
    assert_eq!(model.config.vocab_size, model.chat.vocabulary_size());
    assert_eq!(model.config.vocab_size, embedded::VOCABULARY_SIZE);
    // Embedding, six layers (q and o, k and v, gate with up and down, two norms and two head
    // norms), last norm.
    let layer = 2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 320 + 2 * 192 + 2 * 32;
    assert_eq!(model.config.parameters(), 1024 * 192 + 6 * layer + 192);
}

#[test]
fn the_base_policy_has_the_embedded_shape_and_at_most_eight_megabytes() {
    let base = embedded::base().unwrap();
    assert_eq!(base.config, embedded::model(0).unwrap().config);
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
    let file = place.path().join("model.gguf");
    fs::write(&file, "GGUF").unwrap();
    let message = error(&file);
    assert!(
        message.contains("model.gguf: is a file") && message.contains("sqlenv import-gguf"),
        "{message}"
    );
    // It may be there, but cannot be seen.
    let hidden = file.join("model");
    assert!(!error(&hidden).contains("no such"), "{}", error(&hidden));

    embedded::model(7).unwrap().save(&dir).unwrap();
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
    // An empty file, and a field that is missing.
    for content in ["", "{}"] {
        fs::write(dir.join("config.json"), content).unwrap();
        let file = dir.join("config.json").display().to_string();
        assert!(error(&dir).contains(&file), "{}", error(&dir));
        let error = Model::random(&dir, 0).unwrap_err().to_string();
        assert!(error.contains(&file), "{error}");
    }
}

/// transformers loads a model in the dtype that its config states.
#[test]
fn a_saved_config_states_the_dtype_of_the_weights() {
    let place = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| place.path().join(name));
    let config = |dir: &Path| fs::read(dir.join("config.json")).unwrap();
    let stated = |dir: &Path| {
        let json: serde_json::Value = serde_json::from_slice(&config(dir)).unwrap();
        json["torch_dtype"].clone()
    };
    let wide = embedded::model(7).unwrap();
    let narrow = wide.to(&Device::Cpu, DType::BF16).unwrap();
    narrow.save(&first).unwrap();
    assert_eq!(stated(&first), "bfloat16");
    narrow.save(&second).unwrap();
    assert_eq!(config(&first), config(&second));

    // The same files open as the same model, whose config stays as it is.
    let opened = Model::open(&first, &Device::Cpu, DType::BF16).unwrap();
    assert_eq!(opened.config, wide.config);
    opened.save(&second).unwrap();
    assert_eq!(config(&first), config(&second));
    let widened = open(&first).unwrap();
    widened.save(&second).unwrap();
    assert_eq!(stated(&second), "float32");

    // A run goes on whichever dtype its checkpoints have.
    for dir in [&first, &second] {
        assert!(wide.has_file("config.json", Some(&config(dir))));
        assert!(narrow.has_file("config.json", Some(&config(dir))));
    }
    let other = String::from_utf8(config(&first)).unwrap();
    let other = other.replace("10000.0", "20000.0");
    assert!(!wide.has_file("config.json", Some(other.as_bytes())));
    assert!(!wide.has_file("config.json", None));
    assert!(wide.has_file("LICENSE", None) && !wide.has_file("LICENSE", Some(b"")));
}

/// A folder from a stranger: a pipe would wait for ever, a device has no end, and a link would send
/// a file of this machine to every actor.
#[test]
fn links_that_leave_the_folder_and_special_files_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("model");
    let secret = place.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    embedded::model(7).unwrap().save(&dir).unwrap();
    for (name, file, reason) in [
        ("LICENSE", secret.as_path(), "outside of the folder"),
        (
            "merges.txt",
            Path::new("/dev/zero"),
            "outside of the folder",
        ),
        ("vocab.json", Path::new("."), "no regular file"),
    ] {
        std::os::unix::fs::symlink(file, dir.join(name)).unwrap();
        let refusal = open(&dir).unwrap_err().to_string();
        assert!(
            refusal.contains(name) && refusal.contains(reason),
            "{refusal}"
        );
        fs::remove_file(dir.join(name)).unwrap();
    }
    let pipe = dir.join("generation_config.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    assert!(Chat::open(&dir).is_err());
    let refusal = open(&dir).unwrap_err().to_string();
    assert!(
        refusal.contains("generation_config.json: is no regular file"),
        "{refusal}"
    );
    fs::remove_file(&pipe).unwrap();
    let large = fs::File::create(dir.join("LICENSE")).unwrap();
    large.set_len(1 << 40).unwrap();
    let refusal = open(&dir).unwrap_err().to_string();
    assert!(refusal.contains("LICENSE: is larger than"), "{refusal}");
    fs::remove_file(dir.join("LICENSE")).unwrap();
    open(&dir).unwrap();
}

/// As in a cache of Hugging Face that was copied without its blobs.
#[test]
fn a_link_to_a_file_that_is_not_there_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("model");
    embedded::model(7).unwrap().save(&dir).unwrap();
    let link = dir.join("generation_config.json");
    std::os::unix::fs::symlink("../../blobs/1", &link).unwrap();
    let refusal = open(&dir).unwrap_err().to_string();
    assert!(
        refusal.contains("generation_config.json: is a link to a file that is not there"),
        "{refusal}"
    );
    fs::remove_file(&link).unwrap();
    open(&dir).unwrap();
}

/// As an actor receives them: they are written under these names.
#[test]
fn received_files_are_those_of_a_model() {
    for name in ["../outside", "/etc/passwd", "config.json", "README.md"] {
        let mut files = embedded::files();
        files.push((name.to_owned(), b"{}".to_vec()));
        let weights = embedded::model(0).unwrap().weights;
        let refusal = Model::from_files(files, weights).unwrap_err().to_string();
        assert!(refusal.contains(name), "{refusal}");
    }
}

/// Their ids would have no row in the embedding.
#[test]
fn a_tokenizer_with_more_tokens_than_rows_is_refused() {
    let mut files = embedded::files();
    for (name, content) in &mut files {
        if name == "tokenizer.json" {
            let mut json: serde_json::Value = serde_json::from_slice(content).unwrap();
            json["model"]["vocab"]["one more"] = 4_000_000.into();
            *content = json.to_string().into_bytes();
        }
    }
    let weights = embedded::model(0).unwrap().weights;
    let refusal = Model::from_files(files, weights).unwrap_err().to_string();
    assert!(
        refusal.contains("tokenizer.json") && refusal.contains("vocab_size is 1024"),
        "{refusal}"
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_the_work() {
    let place = tempfile::tempdir().unwrap();
    Model::check_target(&place.path().join("a/model")).unwrap();
    assert_eq!(fs::read_dir(place.path().join("a")).unwrap().count(), 0);
    let refusal = Model::check_target(Path::new("/proc/none/model"));
    let refusal = refusal.unwrap_err().to_string();
    assert!(refusal.contains("cannot be written"), "{refusal}");
}

#[test]
fn a_model_that_cannot_be_written_leaves_nothing_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let mut model = embedded::model(7).unwrap();
    // The file before it cannot be a folder.
    let below_a_file = "config.json/part".to_owned();
    model.files.push((below_a_file, Vec::new()));
    let saved = model.save(&place.path().join("model"));
    let error = saved.unwrap_err().to_string();
    assert!(
        error.contains("config.json/part: cannot be written: "),
        "{error}"
    );
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn weights_of_another_shape_are_refused() {
    let mut files = embedded::files();
    let weights = Weights::random(&embedded::model(0).unwrap().config, 0).unwrap();
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
    let model = embedded::model(7).unwrap();
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
    let saved = dir.path().join("model");
    model.save(&saved).unwrap();
    model.save(&saved).unwrap();
    fs::write(saved.join("thesis.txt"), "years of work").unwrap();
    for refusal in [model.save(&saved), Model::check_target(&saved)] {
        let refusal = refusal.unwrap_err().to_string();
        assert!(
            refusal.contains("holds thesis.txt") && refusal.contains("choose another"),
            "{refusal}"
        );
    }
    for folder in [&taken, &old, &saved] {
        assert!(folder.join("thesis.txt").is_file());
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    model.save(&dir.path().join("empty")).unwrap();
}
