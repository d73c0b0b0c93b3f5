//! The trace that a span belongs to, carried between processes in the header `traceparent` (W3C
//! Trace Context).
//!
//! Invariant: without the feature `opentelemetry` every context is empty, and no header is written
//! or read. Spans with the target [`TRACES`] are below the default log level, so they cost nothing
//! where nobody exports them.

use tonic::codegen::http::{HeaderMap, Request};
use tracing::Span;
#[cfg(feature = "opentelemetry")]
use {
    opentelemetry::propagation::TextMapPropagator as _,
    opentelemetry_sdk::propagation::TraceContextPropagator,
    std::collections::HashMap,
    tonic::codegen::http::{HeaderName, HeaderValue},
    tracing_opentelemetry::OpenTelemetrySpanExt as _,
};

/// The target of the spans that a build with OpenTelemetry exports.
pub const TRACES: &str = "traces";

/// A span that others can become children of, in this process or another.
#[derive(Clone, Debug, Default)]
pub struct TraceContext {
    #[cfg(feature = "opentelemetry")]
    context: opentelemetry::Context,
}

impl TraceContext {
    /// Returns the context of the span that runs now.
    pub fn current() -> Self {
        Self {
            #[cfg(feature = "opentelemetry")]
            context: Span::current().context(),
        }
    }

    /// Makes a new span a child. Call it before the span is entered.
    #[cfg_attr(not(feature = "opentelemetry"), expect(unused_variables))]
    pub fn adopt(&self, span: &Span) {
        // The layer may be missing, or the span's level disabled: then nothing is exported.
        #[cfg(feature = "opentelemetry")]
        let _ = span.set_parent(self.context.clone());
    }

    /// Reads the context of a request's caller.
    #[cfg_attr(not(feature = "opentelemetry"), expect(unused_variables))]
    fn of_caller(headers: &HeaderMap) -> Self {
        Self {
            #[cfg(feature = "opentelemetry")]
            context: {
                let propagator = TraceContextPropagator::new();
                let fields = propagator.fields().filter_map(|name| {
                    let value = headers.get(name)?.to_str().ok()?;
                    Some((name.to_owned(), value.to_owned()))
                });
                propagator.extract(&fields.collect::<HashMap<_, _>>())
            },
        }
    }

    /// Writes the context into the headers of a call.
    #[cfg_attr(not(feature = "opentelemetry"), expect(unused_variables))]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        #[cfg(feature = "opentelemetry")]
        {
            let mut fields = HashMap::<String, String>::new();
            TraceContextPropagator::new().inject_context(&self.context, &mut fields);
            for (name, value) in fields {
                let name = HeaderName::try_from(name);
                if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
    }
}

/// Returns the span of a served call, a child of its caller's span.
pub fn served_call<B>(request: &Request<B>) -> Span {
    let path = request.uri().path();
    let span =
        tracing::trace_span!(target: TRACES, "serve", otel.name = path, otel.kind = "server");
    if !span.is_disabled() {
        TraceContext::of_caller(request.headers()).adopt(&span);
    }
    span
}
