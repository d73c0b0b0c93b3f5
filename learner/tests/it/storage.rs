//! Tests of runs that several learners open: one folder without shared locks, and an object store.

use std::path::Path;

use crate::common::{ARGUMENTS, actor, open, questions, small_config, small_model, train};
use learner::{
    Learner, LearnerConfig, LearnerError, RunStorage, TrainEvent, object_storage::ObjectStorage,
};
use tokio::{sync::mpsc, task};

/// Settings with enough steps for a second learner to come in between.
fn config() -> LearnerConfig {
    LearnerConfig {
        steps: 8,
        ..small_config()
    }
}

/// The last weights of a run that nothing disturbs.
async fn undisturbed() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    train(&open(config(), folder.path()).unwrap(), 1, None)
        .await
        .1
}

/// Trains with one actor until another learner has opened the run, which `open` does after step 2,
/// and returns why the first one stopped and the other learner.
async fn replaced_after_two_steps(
    first: Learner,
    open: impl AsyncFn() -> Learner,
) -> (LearnerError, Learner) {
    let (sender, mut events) = mpsc::channel(1);
    let training = {
        let first = first.clone();
        tokio::spawn(async move { first.train(sender, std::future::pending()).await })
    };
    let playing = tokio::spawn(actor(first.clone(), "actor".to_owned()));
    let mut second = None;
    while let Some((event, recorded)) = events.recv().await {
        if matches!(event, TrainEvent::Step { step: 2, .. }) {
            second = Some(open().await);
        }
        // The trainer makes at most two steps while events wait for their reader.
        let late = matches!(event, TrainEvent::Step { step, .. } if step > 4);
        assert!(
            !late,
            "a step was published after the replacement: {event:?}"
        );
        let _ = recorded.send(());
    }
    let stopped = training.await.unwrap().unwrap_err();
    playing.abort();
    (stopped, second.unwrap())
}

fn check_replaced(fault: &LearnerError, run: &str) {
    let text = fault.to_string();
    assert!(matches!(fault, LearnerError::Replaced { .. }), "{text}");
    assert!(text.contains(run), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_learner_on_one_folder_replaces_the_first_and_ends_the_run() {
    let expected = undisturbed().await;
    let folder = tempfile::tempdir().unwrap();
    let first = open(config(), folder.path()).unwrap();
    let again = async || open(config(), folder.path()).unwrap();
    let (stopped, second) = replaced_after_two_steps(first, again).await;
    check_replaced(&stopped, &folder.path().display().to_string());
    assert!(train(&second, 1, None).await.1 == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_with_other_settings_does_not_stop_the_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(config(), folder.path()).unwrap();
    let mut other = config();
    other.group_size += 1;
    let fault = open(other, folder.path()).err().unwrap().to_string();
    assert!(fault.contains("other settings"), "{fault}");
    train(&first, 1, None).await;
}

/// Copies the run to a new folder, which stands for another machine, and opens it there.
async fn fetched(
    storage: &ObjectStorage,
    folder: &Path,
    config: LearnerConfig,
) -> learner::Result<Learner> {
    let run_dir = folder.join("run");
    std::fs::create_dir_all(&run_dir).unwrap();
    let objects = storage.fetch(&run_dir).await?;
    let storage = RunStorage {
        folder: run_dir,
        objects: Some(objects),
    };
    let open = move || Learner::open(config, ARGUMENTS, small_model(1), questions(), storage);
    task::spawn_blocking(open).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_an_object_store_continues_on_another_machine() {
    let expected = undisturbed().await;
    let storage = ObjectStorage::open("memory:///runs/run").unwrap();
    let [first, second, third] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let learner = fetched(&storage, first.path(), config()).await.unwrap();
    std::fs::write(first.path().join("run/metrics.jsonl"), "as recorded").unwrap();
    train(&learner, 2, Some(2)).await;
    let id = learner.run_id().to_owned();
    drop((learner, first));

    let learner = fetched(&storage, second.path(), config()).await.unwrap();
    assert_eq!(learner.run_id(), id, "actors of the first machine may join");
    assert!(learner.snapshot().policy_version >= 2);
    let recorded = std::fs::read_to_string(second.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(recorded, "as recorded");
    assert!(train(&learner, 1, None).await.1 == expected);

    let mut config = config();
    config.group_size += 1;
    let fault = fetched(&storage, third.path(), config).await.err().unwrap();
    assert!(fault.to_string().contains("other settings"), "{fault}");
}

/// The machine is lost after steps that no checkpoint has: their groups are in the log.
#[tokio::test(flavor = "multi_thread")]
async fn groups_after_the_last_checkpoint_are_not_rolled_out_again() {
    let expected = undisturbed().await;
    let storage = ObjectStorage::open("memory:///runs/run").unwrap();
    let [first, second] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let mut config = config();
    config.checkpoint.every_steps = 0;
    let learner = fetched(&storage, first.path(), config.clone())
        .await
        .unwrap();
    let again = async || {
        fetched(&storage, second.path(), config.clone())
            .await
            .unwrap()
    };
    let (_, second) = replaced_after_two_steps(learner, again).await;
    assert_eq!(
        second.snapshot().policy_version,
        0,
        "only the base has a checkpoint"
    );
    let (events, weights) = train(&second, 1, None).await;
    assert!(weights == expected);
    assert!(events.len() >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_learner_on_one_object_store_replaces_the_first() {
    let expected = undisturbed().await;
    let storage = ObjectStorage::open("memory:///runs/run").unwrap();
    let [first, second] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let learner = fetched(&storage, first.path(), config()).await.unwrap();
    let again = async || fetched(&storage, second.path(), config()).await.unwrap();
    let (stopped, second) = replaced_after_two_steps(learner, again).await;
    check_replaced(&stopped, "memory:///runs/run");
    assert!(train(&second, 1, None).await.1 == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetched_run_has_its_journal_and_its_newest_checkpoint() {
    let storage = ObjectStorage::open("memory:///runs/run").unwrap();
    let [first, second] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let learner = fetched(&storage, first.path(), config()).await.unwrap();
    train(&learner, 1, None).await;
    storage.fetch(second.path()).await.unwrap();
    let checkpoints = second.path().join("checkpoints");
    let mut names: Vec<_> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["LATEST", "step_8"]);
    let groups = learner::journal::read(second.path()).unwrap().count();
    assert!(groups >= 8 * 2, "{groups} groups");
}

#[test]
fn an_address_that_cannot_be_used_is_named_with_the_reason() {
    for (address, expected) in [
        ("s3://bucket", "names no folder for the run"),
        ("ftp://host/path", "Unable to recognise"),
        ("s3:// bad/x", "invalid"),
    ] {
        let fault = ObjectStorage::open(address).err().unwrap().to_string();
        assert!(
            fault.starts_with(address) && fault.contains(expected),
            "{fault}"
        );
    }
    assert!(ObjectStorage::is_address("gs://bucket/run"));
    assert!(!ObjectStorage::is_address("runs/7") && !ObjectStorage::is_address("/runs/7"));
}
