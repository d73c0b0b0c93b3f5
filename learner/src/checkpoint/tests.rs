//! Tests of `state.json`: every change of it is noticed, and no bytes in it do harm.

use candle_core::Tensor;
use proptest::prelude::*;

use super::*;
use crate::{
    optimizer::{Gradients, OptimizerSettings, Parameter},
    questions::{MAX_WAITING, Returning},
};

/// Writes the checkpoint of step 3 without a model.
fn written(folder: &Path) -> PathBuf {
    let path = folder.join("step_3");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join(TENSORS), b"tensors").unwrap();
    let mut state = CheckpointState {
        step: 3,
        next_group_index: 12,
        fingerprint: "f".to_owned(),
        files: hashes(&path).unwrap(),
        ..CheckpointState::default()
    };
    state.sha256 = state.digest();
    write_state(&path, &state);
    path
}

fn write_state(path: &Path, state: &CheckpointState) {
    let json = serde_json::to_vec_pretty(state).unwrap();
    fs::write(path.join(STATE_FILE), json).unwrap();
}

fn refusal(path: &Path) -> String {
    load(path).unwrap_err().to_string()
}

#[test]
fn a_changed_field_and_another_folder_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let state = load(&path).unwrap().state;
    let changes: [fn(&mut CheckpointState); 7] = [
        |state| state.step = 4,
        |state| state.next_group_index = 8,
        |state| state.journal_offset = 1,
        |state| state.updates = 1,
        |state| state.tokens_seen = 1,
        |state| state.questions.new = 1,
        |state| state.fingerprint.clear(),
    ];
    for change in changes {
        let mut changed = state.clone();
        change(&mut changed);
        write_state(&path, &changed);
        let refusal = refusal(&path);
        assert!(refusal.contains("state.json: changed since"), "{refusal}");
    }
    write_state(&path, &state);
    let other = folder.path().join("step_5");
    fs::rename(&path, &other).unwrap();
    let refusal = refusal(&other);
    assert!(
        refusal.contains("after step 3") && refusal.contains("named step_5"),
        "{refusal}"
    );
    // The old copy of a checkpoint that is written again.
    let aside = folder.path().join(".step_3.old");
    fs::rename(&other, &aside).unwrap();
    load(&aside).unwrap();
}

/// The next start needs the room that the part of a checkpoint takes.
#[test]
fn a_checkpoint_that_cannot_be_written_is_removed_while_the_run_is_this_learners() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = policy::embedded::model(1).unwrap();
    let network =
        Network::new(&model.config, &model.weights, OptimizerSettings::default()).unwrap();
    model.files.push(("no folder/file".to_owned(), Vec::new()));
    let temporary = folder.path().join(".step_0.partial");
    let checks = std::cell::Cell::new(0);
    let saved = |replaced_at: u32| {
        checks.set(0);
        let check = || {
            checks.set(checks.get() + 1);
            match checks.get() == replaced_at {
                true => Err(LearnerError::Replaced {
                    run: "the run".to_owned(),
                }),
                false => Ok(()),
            }
        };
        let state = CheckpointState::default();
        save(folder.path(), state, &model, &network, 1, check).unwrap_err()
    };
    let fault = saved(2);
    assert!(matches!(fault, LearnerError::Replaced { .. }), "{fault}");
    assert!(temporary.exists());
    let fault = saved(0).to_string();
    assert!(fault.contains("no folder/file"), "{fault}");
    assert!(!temporary.exists());
}

/// Whoever writes a state can write a hash that fits.
#[test]
fn a_state_may_not_name_files_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let state = load(&path).unwrap().state;
    let changes: [fn(&mut CheckpointState); 2] = [
        |state| drop(state.files.insert("../other".to_owned(), String::new())),
        |state| state.files.clear(),
    ];
    for change in changes {
        let mut changed = state.clone();
        change(&mut changed);
        changed.sha256 = changed.digest();
        write_state(&path, &changed);
        assert!(refusal(&path).contains("does not list the files"));
    }
    fs::remove_file(path.join(STATE_FILE)).unwrap();
    fs::create_dir(path.join(STATE_FILE)).unwrap();
    assert!(refusal(&path).contains("no regular file"));
}

/// Whoever writes a checkpoint can write hashes that fit.
#[test]
fn moments_of_another_shape_are_refused_by_name() {
    let model = policy::embedded::model(1).unwrap();
    let mut network =
        Network::new(&model.config, &model.weights, OptimizerSettings::default()).unwrap();
    let ones = |(name, it): (&String, &Parameter)| (name.clone(), it.value.ones_like().unwrap());
    let gradients: Gradients = network.parameters().iter().map(ones).collect();
    network.update(gradients.clone(), 1e-3).unwrap();
    let state = network.state();
    let with = |name: &str, tensor: Tensor| {
        let same = state
            .iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.clone()));
        let mut changed: BTreeMap<String, Tensor> = same.collect();
        changed.insert(name.to_owned(), tensor);
        policy::Weights::new(changed).to_bytes().unwrap()
    };
    let short = Tensor::zeros(7, candle_core::DType::F32, network.device()).unwrap();
    for (name, expected) in [
        ("first.model.norm.weight", "of the shape [7]"),
        ("second.model.norm.weight", "of the shape [7]"),
        ("first.other", "one moment of the optimizer in place of two"),
    ] {
        let fault = network.restore(&with(name, short.clone()), 1).unwrap_err();
        let fault = fault.to_string();
        let (_, weight) = name.split_once('.').unwrap();
        assert!(
            fault.contains(weight) && fault.contains(expected),
            "{fault}"
        );
    }
    // The network is as it was, and a state that fits restores it after any number of updates.
    network.update(gradients.clone(), 1e-3).unwrap();
    network
        .restore(&state.to_bytes().unwrap(), u64::MAX)
        .unwrap();
    network.update(gradients, 1e-3).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_are_a_state_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        fs::write(path.join(STATE_FILE), bytes).unwrap();
        prop_assert!(load(&path).is_err());
    }

    /// A byte that is changed is noticed, but for those that JSON does not count.
    #[test]
    fn a_changed_byte_never_changes_the_state(at in any::<prop::sample::Index>(), to: u8) {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let state = load(&path).unwrap().state;
        let file = path.join(STATE_FILE);
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        fs::write(&file, bytes).unwrap();
        if let Ok(found) = load(&path) {
            prop_assert_eq!(found.state, state);
        }
    }
}

#[test]
fn the_largest_state_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let mut state = load(&path).unwrap().state;
    let returning = Returning {
        question: u32::MAX as usize,
        times: 1_000,
        from_version: 1_000_000,
    };
    state.questions.returning = vec![returning; MAX_WAITING as usize].into();
    state.sha256 = state.digest();
    write_state(&path, &state);
    assert_eq!(load(&path).unwrap().state, state);
}
