//! Tests the intake without a server.

#[path = "../../../../env/tests/common/counters.rs"]
mod counters;

use ::metrics::with_local_recorder;

use super::*;
use crate::{
    LearnerConfig,
    curriculum::{QuestionOrder, TrainingQuestion},
    questions::QuestionsState,
    scheduler::SchedulerSettings,
};

/// Opens the intake of a run with one question and one group a step.
fn open(run_dir: &Path) -> Intake {
    let config = LearnerConfig::default();
    let settings = SchedulerSettings {
        steps: 1,
        groups_per_step: 1,
        max_groups_per_step: 1,
        oversampling: 1.0,
        max_staleness: 0,
        lease: Duration::from_secs(10),
        max_leases_per_actor: 1,
    };
    let questions = vec![TrainingQuestion::new("q", "easy")];
    let order = QuestionOrder::new(&questions, &[], 1).unwrap();
    let state = QuestionsState::default();
    let questions = Questions::new(config.repeat, (questions, order), (0, 0), state);
    let work = (Scheduler::new(settings, 0, 0, 1), questions);
    let rules = GroupRules::new(&config, 64);
    let journal = (run_dir, NewTerm::begin(run_dir).unwrap());
    Intake::open(work, rules, journal, None, 0).unwrap()
}

/// If the metrics said that actors hold groups, one would not look for actors.
#[test]
fn leases_that_expire_while_no_actor_calls_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let intake = open(folder.path());
    let (claim, _) = intake.claim(Duration::ZERO, ("a", 1), 0);
    assert!(matches!(claim, Claim::Group(_)));
    intake.stop();
    let counters = counters::Counters::default();
    let after_the_lease = || Duration::from_secs(10);
    let batch = with_local_recorder(&counters, || intake.wait_for_batch(after_the_lease));
    assert!(batch.unwrap().is_none());
    assert_eq!(counters.of("learner_leases_expired_total")[""], 1);
}
