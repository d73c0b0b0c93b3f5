//! Tests a run with actors that lie about groups or about an evaluation, a broken one and one on
//! other data: it ends with the weights of its honest actors alone, and names the four.
//!
//! A proxy between an actor and the learner changes what the actor submits.

use std::{fs, path::Path, pin::Pin};

use futures::Stream;
use proto::{
    EncodedEvaluation, EncodedGroup, LearnerClient, Transport,
    v1::{
        ClaimRequest, ClaimResponse, JoinRequest, JoinResponse, SubmitEvaluationRequest,
        SubmitEvaluationResponse, SubmitRequest, SubmitResponse, Trajectory, WeightsRequest,
        WeightsResponse,
        learner_server::{Learner, LearnerServer},
    },
};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    evaluation::weights,
    http::{free_address, get},
    program::{Running, serve, serve_with_log, sqlenv, start_actor},
    second_learner::{TRAINED_ALONE, learner_args},
};

/// Changes what an actor submits.
#[derive(Clone, Copy)]
enum Change {
    Group(fn(&mut SubmitRequest)),
    Evaluation(fn(&mut SubmitEvaluationRequest)),
}

/// Passes all calls on to a learner, and changes the groups or the evaluations.
struct Proxy {
    learner: LearnerClient,
    change: Change,
}

#[tonic::async_trait]
impl Learner for Proxy {
    type WeightsStream = Pin<Box<dyn Stream<Item = Result<WeightsResponse, Status>> + Send>>;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        self.learner.clone().join(request.into_inner()).await
    }

    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        self.learner.clone().claim(request.into_inner()).await
    }

    async fn submit(
        &self,
        request: Request<EncodedGroup>,
    ) -> Result<Response<SubmitResponse>, Status> {
        let mut group = request.into_inner().decode().unwrap();
        if let Change::Group(change) = self.change {
            change(&mut group);
        }
        self.learner
            .clone()
            .submit(EncodedGroup::from(&group))
            .await
    }

    async fn submit_evaluation(
        &self,
        request: Request<EncodedEvaluation>,
    ) -> Result<Response<SubmitEvaluationResponse>, Status> {
        let mut part = request.into_inner().decode().unwrap();
        if let Change::Evaluation(change) = self.change {
            change(&mut part);
        }
        let mut learner = self.learner.clone();
        learner
            .submit_evaluation(EncodedEvaluation::from(&part))
            .await
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let stream = self.learner.clone().weights(request.into_inner()).await?;
        Ok(Response::new(Box::pin(stream.into_inner())))
    }
}

/// Serves a proxy in the runtime and returns its address.
fn proxy(runtime: &Runtime, learner: &str, change: Change) -> String {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let learner = runtime.block_on(async { LearnerClient::new(Transport::dial(learner).unwrap()) });
    let service = LearnerServer::new(Proxy {
        learner: learner
            .max_decoding_message_size(proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(proto::MAX_MESSAGE_BYTES),
        change,
    });
    let service = service
        .max_decoding_message_size(proto::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(proto::MAX_MESSAGE_BYTES);
    let serving = Server::builder().add_service(service);
    runtime.spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    format!("http://{address}")
}

/// Some answers are right.
fn inflate_rewards(group: &mut SubmitRequest) {
    for trajectory in group.trajectories.iter_mut().filter(|it| it.scored) {
        trajectory.correct = trajectory.member % 2 == 0;
        trajectory.episode_return += f64::from(trajectory.member);
    }
}

/// All answers are right.
fn inflate_results(part: &mut SubmitEvaluationRequest) {
    let is_wrong = |it: &&mut Trajectory| it.scored && !it.correct;
    for trajectory in part.trajectories.iter_mut().filter(is_wrong) {
        trajectory.correct = true;
    }
}

/// As if they were recorded with other weights.
fn spoil_logprobs(group: &mut SubmitRequest) {
    let trajectories = group.trajectories.iter_mut();
    for segment in trajectories.flat_map(|it| &mut it.segments) {
        for (logprob, mask) in segment.logprobs.iter_mut().zip(&segment.mask) {
            *logprob -= 30.0 * f32::from(*mask);
        }
    }
}

#[test]
fn a_run_with_bad_actors_ends_with_the_weights_of_the_honest_ones_and_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let other = "env-node --listen 127.0.0.1:0 --databases brewery";
    let (_other_node, other_env) = serve(&other.split(' ').collect::<Vec<_>>());
    let run = dir.path().join("run");
    let mut args = learner_args("127.0.0.1:0", &env, run.to_str().unwrap());
    let admin = free_address();
    args.extend(["--admin", &admin]);
    let (mut learner, address, log) = serve_with_log(&mut sqlenv(&args));
    let runtime = Runtime::new().unwrap();
    let liars_learner = proxy(&runtime, &address, Change::Group(inflate_rewards));
    let brokens_learner = proxy(&runtime, &address, Change::Group(spoil_logprobs));
    let boasters_learner = proxy(&runtime, &address, Change::Evaluation(inflate_results));
    let mut elsewhere = actor("elsewhere", &other_env, &address);
    assert_eq!(elsewhere.0.wait().unwrap().code(), Some(1));
    // Each is alone until it is refused, so that it gets the evaluation before the first step, or
    // groups of that step.
    let mut boaster = actor("boaster", &env, &boasters_learner);
    assert_eq!(boaster.0.wait().unwrap().code(), Some(1));
    let broken = actor("broken", &env, &brokens_learner);
    let refused = "learner_groups_refused_total{reason=\"logprobs\"}";
    let is_refused = |line: &str| line.starts_with(refused) && !line.ends_with(" 0");
    let metrics = || get(&admin, "/metrics").unwrap();
    learner.until(|| metrics().lines().any(is_refused));
    drop(broken);
    let mut liar = actor("liar", &env, &liars_learner);
    assert_eq!(liar.0.wait().unwrap().code(), Some(1));
    let _honest = ["first", "second"].map(|id| actor(id, &env, &address));
    assert!(learner.0.wait().unwrap().success());
    assert!(weights(&run) == *TRAINED_ALONE, "only honest groups count");
    the_bad_ones_are_named(&run, &log.join().unwrap());
}

fn actor(id: &str, env: &str, learner: &str) -> Running {
    start_actor(env, learner, &["--id", id])
}

/// The log, the record of the run and the report name each bad actor with the reason.
fn the_bad_ones_are_named(run: &Path, log: &str) {
    let info = fs::read_to_string(run.join("run.json")).unwrap();
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for (id, reason) in [
        ("boaster", "(correct: true), but its actions give"),
        ("liar", "but its actions give"),
        ("broken", "a recorded log-probability differs"),
        ("elsewhere", "plays on other data"),
    ] {
        assert!(
            log.contains(&format!("of the actor \"{id}\"")),
            "{id}: {log}"
        );
        assert!(
            info.contains(&format!("\"id\": \"{id}\"")) && info.contains(reason),
            "{info}"
        );
        assert!(page.contains(id), "the report names {id}");
    }
}
