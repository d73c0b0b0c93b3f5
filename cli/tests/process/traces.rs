//! Tests that a group has one trace, from its claim to the step that trains on it, over three
//! processes that export to an OTLP collector.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    resource::v1::Resource,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    outcomes::fail,
    program::{Running, serve_with, smoke_learner, sqlenv},
};

/// What the test reads of a span.
#[derive(Clone, Debug)]
struct Exported {
    service: String,
    name: String,
    trace: Vec<u8>,
    parent: Vec<u8>,
}

/// The exported spans by id.
type Spans = BTreeMap<Vec<u8>, Exported>;

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Spans>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().unwrap();
        for process in request.into_inner().resource_spans {
            let service = service_name(process.resource.unwrap_or_default());
            for span in process.scope_spans.into_iter().flat_map(|it| it.spans) {
                let exported = Exported {
                    service: service.clone(),
                    name: span.name,
                    trace: span.trace_id,
                    parent: span.parent_span_id,
                };
                spans.insert(span.span_id, exported);
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves on a free port, and returns the address.
    fn serve(&self) -> String {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(self.clone());
        thread::spawn(move || {
            let server = Server::builder().add_service(service);
            let incoming = TcpListenerStream::new(listener);
            runtime
                .block_on(server.serve_with_incoming(incoming))
                .unwrap();
        });
        format!("http://{address}")
    }

    /// Waits for a span with this name and three that it is part of.
    fn whole_line(&self, name: &str) -> Vec<Exported> {
        for _ in 0..LOOKS {
            match self.line_of(name) {
                Some(line) if line.len() >= 4 => return line,
                _ => thread::sleep(PAUSE),
            }
        }
        panic!("{name}: {:#?}", self.line_of(name))
    }

    /// Returns a span with this name and all that it is part of, outermost last.
    fn line_of(&self, name: &str) -> Option<Vec<Exported>> {
        let spans = self.0.lock().unwrap();
        let lines = spans.values().filter(|span| span.name == name).map(|span| {
            let parent = |it: &Exported| spans.get(&it.parent).cloned();
            std::iter::successors(Some(span.clone()), parent).collect()
        });
        lines.max_by_key(Vec::len)
    }
}

fn service_name(resource: Resource) -> String {
    let named = resource
        .attributes
        .into_iter()
        .find(|it| it.key == "service.name");
    match named.and_then(|named| named.value?.value) {
        Some(Value::StringValue(name)) => name,
        other => panic!("a service without a name: {other:?}"),
    }
}

/// The pauses between looks at the collector, and how many there are.
const PAUSE: Duration = Duration::from_millis(50);
const LOOKS: usize = 2_400;

#[test]
#[cfg_attr(
    not(feature = "opentelemetry"),
    ignore = "needs --features opentelemetry"
)]
fn a_group_has_one_trace_from_its_claim_to_its_gradient() {
    let collector = Collector::default();
    let _env_node = traced_run(&collector.serve());
    let trained = collector.whole_line("train");
    assert_eq!(
        described(&trained),
        [
            "sqlenv-learner train",
            "sqlenv-learner /sqlenv.v1.Learner/Submit",
            "sqlenv-actor Learner.Submit",
            "sqlenv-actor work",
        ]
    );
    assert_eq!(
        described(&collector.whole_line("/sqlenv.v1.Env/Step")),
        [
            "sqlenv-env-node /sqlenv.v1.Env/Step",
            "sqlenv-actor Env.Step",
            "sqlenv-actor episode",
            "sqlenv-actor work",
        ]
    );
    let trace = &trained[0].trace;
    assert!(trained.iter().all(|span| &span.trace == trace));
    let spans = collector.0.lock().unwrap();
    let of_trace = spans.values().filter(|span| &span.trace == trace);
    let mut names: Vec<&str> = of_trace.map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in [
        "Learner.Claim",
        "/sqlenv.v1.Learner/Claim",
        "episode",
        "complete",
        "Env.Reset",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
}

/// tonic would accept some of them, and fail at each export.
#[test]
#[cfg_attr(
    not(feature = "opentelemetry"),
    ignore = "needs --features opentelemetry"
)]
fn a_wrong_address_of_the_collector_is_a_wrong_setting() {
    for (address, reason) in [
        ("collector:4317", "scheme"),
        ("https://collector:4317", "scheme"),
        ("http://:4317", "no host"),
        ("not an address", "invalid"),
    ] {
        let text = fail(&mut sqlenv(&["settings", "--traces", address]), 2);
        let named = format!("{address} cannot be used; give it as http://HOST:4317");
        assert!(text.contains(&named) && text.contains(reason), "{text}");
    }
}

/// Trains over three processes that export to the collector, and returns the env-node, which runs
/// on and sends what it has every 200 ms.
fn traced_run(collector: &str) -> Running {
    let traced = |args: &[&str]| {
        let mut command = sqlenv(args);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
        command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
        command
    };
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (env_node, env) = serve_with(&mut traced(&["env-node", "--listen", "127.0.0.1:0"]));
    let learner = smoke_learner(&env, run_dir.to_str().unwrap());
    let (mut learner, address) = serve_with(&mut traced(&learner));
    let actor = traced(&["actor", "--env", &env, "--learner", &address]).spawn();
    let mut actor = Running(actor.unwrap());
    assert!(learner.0.wait().unwrap().success());
    assert!(actor.0.wait().unwrap().success());
    env_node
}

fn described(line: &[Exported]) -> Vec<String> {
    let described = |span: &Exported| format!("{} {}", span.service, span.name);
    line.iter().map(described).collect()
}
