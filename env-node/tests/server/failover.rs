//! Tests a client with a list of two nodes, which are real processes that share a key. One is
//! killed in the middle of 200 episodes.

use std::cell::RefCell;

use env::EnvSettings;
use proto::{EnvClient, Transport};

use crate::{common::Fixture, process::Process, transcripts::play_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_a_node_changes_no_transcript_and_loses_no_episode() {
    let undisturbed = play_all(Fixture::new(EnvSettings::default()).client, || {}).await;

    let (doomed, other) = (Process::start(), Process::start());
    let list = format!("{},{}", doomed.url(), other.url());
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let doomed = RefCell::new(doomed);
    let disturbed = play_all(client, || doomed.borrow_mut().kill()).await;
    assert_eq!(disturbed, undisturbed);
}
