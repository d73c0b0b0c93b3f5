//! Reads checkpoints with arbitrary files. A changed file is refused; a file whose hash fits is
//! restored and trained on, or refused.

#![no_main]

use std::{cell::LazyCell, collections::BTreeMap, fs, path::PathBuf};

use candle_core::Tensor;
use learner::{
    checkpoint::{self, CheckpointState},
    network::Network,
    optimizer::{Gradients, OptimizerSettings},
};
use learner_fuzz::{model, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use policy::Model;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const STATE: &str = "state.json";
const TENSORS: &str = "trainer.safetensors";
const LATEST: &str = "LATEST";
/// What the first byte of an input says that the rest is: these files, or tensors whose hash fits.
const FILES: [&str; 3] = [STATE, TENSORS, LATEST];

/// A run with the checkpoints of two steps.
struct Fixture {
    folder: TempDir,
    /// The checkpoint that inputs change.
    newest: PathBuf,
    model: Model,
    /// The files of `newest`, and `LATEST`.
    files: BTreeMap<&'static str, Vec<u8>>,
    state: CheckpointState,
}

thread_local! {
    static FIXTURE: LazyCell<Fixture> = LazyCell::new(Fixture::new);
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, content)) = data.split_first() else {
        return;
    };
    FIXTURE.with(|fixture| match FILES.get(usize::from(kind)) {
        Some(name) => fixture.with_changed_file(name, content),
        None => fixture.with_tensors(content, kind),
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    FIXTURE.with(|fixture| mutate(data, size, max_size, seed, &fixture.seeds()))
});

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let model = model();
        let mut network = network(&model);
        update(&mut network);
        let save = |step| {
            let state = CheckpointState {
                step,
                updates: step,
                fingerprint: "f".to_owned(),
                ..CheckpointState::default()
            };
            checkpoint::save(folder.path(), state, &model, &network, 2, || Ok(()))
        };
        save(1).expect("a checkpoint");
        let newest = save(2).expect("a checkpoint");
        let read = |path: PathBuf| fs::read(path).expect("a file");
        let files = BTreeMap::from([
            (STATE, read(newest.join(STATE))),
            (TENSORS, read(newest.join(TENSORS))),
            (LATEST, read(folder.path().join(LATEST))),
        ]);
        let state = checkpoint::load(&newest).expect("a checkpoint").state;
        Self {
            folder,
            newest,
            model,
            files,
            state,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        match name {
            LATEST => self.folder.path().join(name),
            _ => self.newest.join(name),
        }
    }

    /// A changed checkpoint is not read, unless it says the same; then the one before it is.
    fn with_changed_file(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).expect("a file");
        if let Ok(found) = checkpoint::load(&self.newest) {
            assert_eq!(found.state, self.state);
        }
        let newest = checkpoint::load_latest(self.folder.path());
        let newest = newest
            .expect("the checkpoint before it")
            .expect("a checkpoint");
        assert!([1, 2].contains(&newest.state.step));
        fs::write(self.path(name), &self.files[name]).expect("a file");
    }

    /// Whoever can write a checkpoint can write its hashes, too.
    fn with_tensors(&self, tensors: &[u8], kind: u8) {
        let mut state = self.state.clone();
        state.sha256.clear();
        state.updates = [2, 0, u64::MAX][usize::from(kind) % 3];
        state
            .files
            .insert(TENSORS.to_owned(), hex::encode(Sha256::digest(tensors)));
        fs::write(self.path(TENSORS), tensors).expect("a file");
        let fields = serde_json::to_vec(&state).expect("JSON");
        state.sha256 = hex::encode(Sha256::digest(fields));
        let json = serde_json::to_vec(&state).expect("JSON");
        fs::write(self.path(STATE), json).expect("a file");
        let loaded = checkpoint::load(&self.newest).expect("hashes that fit");
        let mut network = network(&self.model);
        if loaded.restore(&mut network).is_ok() {
            update(&mut network);
        }
        for name in [TENSORS, STATE] {
            fs::write(self.path(name), &self.files[name]).expect("a file");
        }
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let input = |kind: u8, name| [&[kind], self.files[name].as_slice()].concat();
        let kinds = [
            (0, STATE),
            (2, LATEST),
            (3, TENSORS),
            (4, TENSORS),
            (5, TENSORS),
        ];
        kinds.map(|(kind, name)| input(kind, name)).into()
    }
}

fn network(model: &Model) -> Network {
    let settings = OptimizerSettings::default();
    Network::new(&model.config, &model.weights, settings).expect("a network")
}

/// Makes an update, which may diverge.
fn update(network: &mut Network) {
    let ones = |(name, parameter): (&String, &learner::optimizer::Parameter)| {
        let ones = Tensor::ones_like(&parameter.value).expect("a tensor");
        (name.clone(), ones)
    };
    let gradients: Gradients = network.parameters().iter().map(ones).collect();
    let _ = network.update(gradients, 1e-3);
}
