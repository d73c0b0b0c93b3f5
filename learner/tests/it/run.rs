//! Tests whole runs over the in-process transport: they have the same bits with any actors, threads
//! and interruptions.

use std::{fs, path::Path, time::Duration};

use crate::common::{
    ARGUMENTS, act, actor, group, open, open_with, small_config, train, unread_events,
};
use learner::{
    LearnerConfig, LearnerError, RunArguments, TrainEvent, config::RatioAgainst,
    questions::RepeatSettings,
};
use proto::{
    EncodedGroup, LearnerClient, Transport,
    v1::{GroupClaim, SubmitRequest, SubmitVerdict},
};
use tokio::sync::mpsc;

async fn whole_run(config: LearnerConfig, actors: usize) -> Vec<u8> {
    whole_run_with(config, ARGUMENTS, actors).await
}

async fn whole_run_with(config: LearnerConfig, arguments: RunArguments, actors: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let learner = open_with(config, arguments, folder.path()).unwrap();
    train(&learner, actors, None).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_and_threads_do_not_change_a_bit() {
    let one = whole_run(small_config(), 1).await;
    let base = crate::common::small_model(1).weights.to_bytes().unwrap();
    assert_ne!(one, base, "training changes the weights");
    assert!(one == whole_run(small_config(), 3).await, "three actors");
    assert!(
        one == whole_run_with(
            small_config(),
            RunArguments {
                threads: 3,
                ..ARGUMENTS
            },
            1
        )
        .await,
        "three threads"
    );
    assert!(
        one != whole_run_with(
            small_config(),
            RunArguments {
                seed: 6,
                ..ARGUMENTS
            },
            1
        )
        .await,
        "another seed asks other questions"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_resumes_to_the_same_bits() {
    let expected = whole_run(small_config(), 2).await;
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let (_, halfway) = train(&learner, 2, Some(2)).await;
    let step = learner.snapshot().policy_version;
    assert!((2..4).contains(&step), "stopped after step {step}");
    assert!(halfway != expected);
    drop(learner);
    // As after a kill while a checkpoint was written, which may have filled the disk.
    let abandoned = folder.path().join("checkpoints/.step_9.partial");
    fs::create_dir(&abandoned).unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    assert!(!abandoned.exists());
    assert_eq!(learner.snapshot().policy_version, step);
    assert!(
        learner.snapshot().body() == halfway,
        "resumes with the weights it stopped with"
    );
    assert!(train(&learner, 1, None).await.1 == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_run_replays_its_journal_without_actors() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let (events, expected) = train(&learner, 2, None).await;
    drop(learner);
    for lost in 2..=4 {
        fs::remove_dir_all(folder.path().join(format!("checkpoints/step_{lost}"))).unwrap();
    }
    let learner = open(small_config(), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 1);
    let (replayed, weights) = train(&learner, 0, None).await;
    assert!(weights == expected);
    let metrics = |events: &[TrainEvent]| -> Vec<(u64, f64, f64)> {
        let rows = events.iter().filter_map(|event| match event {
            TrainEvent::Step { step, metrics } => {
                Some((*step, metrics["loss"], metrics["num_tokens"]))
            }
            _ => None,
        });
        rows.filter(|(step, ..)| *step > 1).collect()
    };
    assert_eq!(
        metrics(&replayed),
        metrics(&events),
        "loss and token counts go on as before"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_passed_over_and_one_before_taken() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let expected = train(&learner, 1, None).await.1;
    drop(learner);
    let tensors = folder.path().join("checkpoints/step_4/trainer.safetensors");
    let mut bytes = fs::read(&tensors).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&tensors, bytes).unwrap();
    fs::remove_file(folder.path().join("checkpoints/step_3/state.json")).unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 2);
    assert!(train(&learner, 1, None).await.1 == expected);
}

/// A state that was edited, and a folder that took the place of another, would train to other
/// weights without a word.
#[tokio::test(flavor = "multi_thread")]
async fn an_edited_or_misplaced_checkpoint_is_passed_over_and_the_weights_stay() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let expected = train(&learner, 1, None).await.1;
    drop(learner);
    let checkpoints = folder.path().join("checkpoints");
    for (step, field) in [(4, "step"), (3, "next_group_index")] {
        let path = checkpoints.join(format!("step_{step}/state.json"));
        let text = fs::read_to_string(&path).unwrap();
        let mut state: serde_json::Value = serde_json::from_str(&text).unwrap();
        state[field] = (state[field].as_u64().unwrap() - 1).into();
        fs::write(&path, state.to_string()).unwrap();
    }
    fs::remove_dir_all(checkpoints.join("step_2")).unwrap();
    fs::rename(checkpoints.join("step_1"), checkpoints.join("step_2")).unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 0);
    assert!(train(&learner, 1, None).await.1 == expected);
}

fn checkpoint_names(run_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(run_dir.join("checkpoints")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_falls_back_behind_does_not_push_out_its_new_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    train(&open(small_config(), folder.path()).unwrap(), 1, None).await;
    for step in 3..=4 {
        fs::remove_file(
            folder
                .path()
                .join(format!("checkpoints/step_{step}/state.json")),
        )
        .unwrap();
    }
    let mut config = small_config();
    config.checkpoint.keep_last = 2;
    config.steps = 3;
    let learner = open(config, folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 2);
    train(&learner, 1, None).await;
    assert_eq!(
        checkpoint_names(folder.path()),
        ["LATEST", "step_2", "step_3"]
    );
}

/// A crash between the two renames of a checkpoint that is written again, then a run that has no
/// steps left.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_put_aside_still_counts_and_none_is_written_without_a_step() {
    let folder = tempfile::tempdir().unwrap();
    train(&open(small_config(), folder.path()).unwrap(), 1, None).await;
    let checkpoints = folder.path().join("checkpoints");
    fs::rename(checkpoints.join("step_4"), checkpoints.join(".step_4.old")).unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 4);
    let (events, _) = train(&learner, 0, None).await;
    assert!(events.is_empty(), "nothing is left to do: {events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_no_checkpoint_explains_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(&open(small_config(), folder.path()).unwrap(), 1, None).await;
    fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    let Err(fault) = open(small_config(), folder.path()) else {
        panic!("resumed without knowing the settings")
    };
    assert!(fault.to_string().contains("holds groups, but"), "{fault}");
    fs::remove_dir_all(folder.path().join("journal")).unwrap();
    assert!(open(small_config(), folder.path()).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_pruned_and_hold_a_model_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.checkpoint.keep_last = 2;
    let learner = open(config, folder.path()).unwrap();
    let (events, weights) = train(&learner, 1, None).await;
    let checkpoints = folder.path().join("checkpoints");
    assert_eq!(
        checkpoint_names(folder.path()),
        ["LATEST", "step_3", "step_4"]
    );
    assert_eq!(
        fs::read_to_string(checkpoints.join("LATEST")).unwrap(),
        "step_4"
    );
    let cpu = candle_core::Device::Cpu;
    let hf = checkpoints.join("step_4/hf");
    let model = policy::Model::open(&hf, &cpu, candle_core::DType::F32).unwrap();
    assert!(model.weights.to_bytes().unwrap() == weights);
    let last = events.last().unwrap();
    assert!(matches!(last, TrainEvent::Checkpoint { step: 4, path } if path.ends_with("step_4")));
}

/// A resumed run does not make the steps before a checkpoint again.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_waits_until_its_step_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let playing = tokio::spawn(actor(learner.clone(), "actor".to_owned()));
    let (sender, mut events) = mpsc::channel(2);
    let training = {
        let learner = learner.clone();
        tokio::spawn(async move { learner.train(sender, std::future::pending()).await })
    };
    let mut steps = 0;
    while let Some((event, recorded)) = events.recv().await {
        // As long as an evaluation takes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let TrainEvent::Step { step, .. } = event {
            let checkpoint = format!("checkpoints/step_{step}");
            assert!(!folder.path().join(checkpoint).exists(), "step {step}");
            steps += 1;
        }
        let _ = recorded.send(());
    }
    assert_eq!(steps, training.await.unwrap().unwrap());
    playing.abort();
}

/// A reader that cannot record a step drops its sender, and one that is gone drops all.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_not_recorded_gets_no_checkpoint() {
    for is_gone in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let learner = open(small_config(), folder.path()).unwrap();
        let playing = tokio::spawn(actor(learner.clone(), "actor".to_owned()));
        let (sender, mut events) = mpsc::channel(2);
        let reading = async move {
            if !is_gone {
                while events.recv().await.is_some() {}
            }
        };
        let training = learner.train(sender, std::future::pending());
        let (trained, ()) = tokio::join!(training, reading);
        assert!(matches!(trained, Err(LearnerError::Unrecorded)));
        assert_eq!(checkpoint_names(folder.path()), ["LATEST", "step_0"]);
        playing.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_report_trl_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.loss.kl_coef = 0.04;
    config.loss.entropy_coef = 0.01;
    config.ratio_against = RatioAgainst::Learner;
    config.num_iterations = 2;
    let learner = open(config, folder.path()).unwrap();
    let (events, _) = train(&learner, 1, None).await;
    let Some(TrainEvent::Step { metrics, .. }) = events.first() else {
        panic!("no step: {events:?}")
    };
    for name in [
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "rewards/correct/mean",
        "rewards/shaping/std",
        "completions/mean_length",
        "completions/clipped_ratio",
        "completions/max_terminated_length",
        "entropy",
        "kl",
        "clip_ratio/region_mean",
        "policy_loss",
        "loss",
        "grad_norm",
        "learning_rate",
        "sampling/sampling_logp_difference/mean",
        "sampling/importance_sampling_ratio/max",
        "tools/call_frequency",
        "tools/failure_frequency",
        "num_tokens",
        "step_time",
        "staleness/max",
        "groups/kept",
        "groups/kept_tokens",
        "groups/left_out",
        "groups/repeated",
        "groups/zero_variance",
        "time/train",
    ] {
        assert!(
            metrics.get(name).is_some_and(|value| value.is_finite()),
            "{name}: {:?}",
            metrics.get(name)
        );
    }
    assert_eq!(metrics["groups/kept"], 3.0);
    let (kept, all) = (metrics["groups/kept_tokens"], metrics["num_tokens"]);
    assert!(kept > 0.0 && all > 0.0, "{kept} and {all}");
    assert_eq!(metrics["groups/left_out"], metrics["groups/zero_variance"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_run_ends_and_keeps_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(
        LearnerConfig {
            max_staleness: 2,
            repeat: RepeatSettings::default(),
            ..small_config()
        },
        folder.path(),
    )
    .unwrap();
    let (events, _) = train(&learner, 2, None).await;
    let lags = events.iter().filter_map(|event| match event {
        TrainEvent::Step { metrics, .. } => Some(metrics["staleness/max"]),
        _ => None,
    });
    assert!(
        lags.clone().all(|lag| lag <= 2.0),
        "{:?}",
        lags.collect::<Vec<_>>()
    );
    assert_eq!(lags.count(), 4);
}

#[test]
fn a_run_folder_is_not_reused_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(small_config(), folder.path()).unwrap());
    let mut other = small_config();
    other.optimizer.learning_rate = 2e-3;
    let Err(fault) = open(other, folder.path()) else {
        panic!("resumed under other settings")
    };
    assert!(fault.to_string().contains("other settings"), "{fault}");
    let unrelated = LearnerConfig {
        steps: 9,
        ..small_config()
    };
    let two_threads = RunArguments {
        threads: 2,
        ..ARGUMENTS
    };
    assert!(
        open_with(unrelated, two_threads, folder.path()).is_ok(),
        "threads and more steps may change"
    );
}

/// A learner dies with the base checkpoint only; the next one reads its journal, while actors still
/// hold groups and weights of the lost versions.
#[tokio::test(flavor = "multi_thread")]
async fn actors_survive_a_learner_that_falls_back_to_its_last_checkpoint() {
    let expected = whole_run(small_config(), 1).await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.checkpoint.every_steps = 100;
    let dead = open(config.clone(), folder.path()).unwrap();
    train(&dead, 2, Some(2)).await;
    let step = dead.snapshot().policy_version;
    // A stop writes a checkpoint, a crash does not.
    fs::remove_dir_all(folder.path().join(format!("checkpoints/step_{step}"))).unwrap();
    fs::write(folder.path().join("checkpoints/LATEST"), "step_0").unwrap();
    drop(dead);
    let resumed = open(config, folder.path()).unwrap();
    assert_eq!(resumed.snapshot().policy_version, 0);
    assert!(step >= 2);
    let in_flight = GroupClaim {
        group_index: 1_000,
        group_size: 4,
        ..GroupClaim::default()
    };
    let mut client = LearnerClient::new(Transport::in_process(resumed.service()));
    let request = SubmitRequest {
        group_index: in_flight.group_index,
        trajectories: group(&in_flight, step),
        run_id: resumed.run_id().to_owned(),
        ..SubmitRequest::default()
    };
    let response = client.submit(EncodedGroup::from(&request));
    assert_eq!(
        response.await.unwrap().into_inner().verdict(),
        SubmitVerdict::Stale
    );
    assert!(train(&resumed, 2, None).await.1 == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_without_a_scored_episode_stops_the_run_and_is_played_again() {
    let expected = whole_run(small_config(), 1).await;
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let actor = tokio::spawn(act(learner.clone(), "a".to_owned(), |claim, version| {
        let mut trajectories = group(claim, version);
        for trajectory in &mut trajectories {
            trajectory.scored = false;
            trajectory.failure = "Env.Step failed: away".to_owned();
        }
        trajectories
    }));
    let fault = learner
        .train(unread_events(), std::future::pending())
        .await
        .unwrap_err()
        .to_string();
    actor.abort();
    // It holds the run open until it has ended.
    let _ = actor.await;
    assert!(
        fault.starts_with("step 1: none of its ") && fault.contains("Env.Step failed: away"),
        "{fault}"
    );
    drop(learner);
    let resumed = open(small_config(), folder.path()).unwrap();
    assert!(train(&resumed, 1, None).await.1 == expected);
}
