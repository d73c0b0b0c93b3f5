//! Log lines on stderr, and traces to a collector.

use anyhow::{Context as _, Result};
use tracing_subscriber::{
    EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt,
};

use crate::{args::LogArgs, config::WrongSettings, progress::Progress};

/// Logs from now on. Must be called inside a runtime. The returned value sends the last spans when
/// it is dropped.
///
/// # Errors
/// [`WrongSettings`] for a filter or the address of a collector that cannot be used.
pub(crate) fn init(args: &LogArgs, command: &str, progress: &Progress) -> Result<TraceExport> {
    let filter = &args.log;
    let parsed = EnvFilter::try_new(filter).with_context(|| {
        format!("--log {filter:?} is not a filter; write for example info or actor=debug")
    });
    let filter = parsed.map_err(WrongSettings)?;
    let writer = progress.clone();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || writer.clone())
        // Colours are control characters, which the writer replaces.
        .with_ansi(false)
        .with_filter(filter);
    let registry = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "opentelemetry")]
    {
        let (layer, export) = export::open(args.traces.as_deref(), command)?;
        registry.with(layer).init();
        Ok(export)
    }
    #[cfg(not(feature = "opentelemetry"))]
    {
        registry.init();
        if let Some(endpoint) = &args.traces {
            tracing::warn!(
                "{command} sends no traces to {endpoint}: this build has no OpenTelemetry; build with \
                 --features opentelemetry"
            );
        }
        Ok(TraceExport)
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) struct TraceExport;

#[cfg(feature = "opentelemetry")]
pub(crate) use export::TraceExport;

#[cfg(feature = "opentelemetry")]
mod export {
    use anyhow::{Context as _, Result, ensure};
    use axum::http::Uri;
    use opentelemetry::{Key, Value, trace::TracerProvider as _};
    use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
    use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
    use proto::TRACES;
    use tracing::{Subscriber, level_filters::LevelFilter};
    use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

    use crate::config::WrongSettings;

    /// The spans that were not sent yet.
    pub(crate) struct TraceExport(Option<SdkTracerProvider>);

    impl Drop for TraceExport {
        fn drop(&mut self) {
            let Some(provider) = self.0.take() else {
                return;
            };
            if let Err(error) = provider.shutdown() {
                tracing::warn!("the last traces could not be sent: {error}");
            }
        }
    }

    /// Returns the layer that sends spans to the collector at `endpoint`, if there is one.
    ///
    /// # Errors
    /// [`WrongSettings`].
    pub(super) fn open<S>(
        endpoint: Option<&str>,
        command: &str,
    ) -> Result<(Option<impl Layer<S> + use<S>>, TraceExport)>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        // An empty variable counts as none, as OpenTelemetry specifies.
        let Some(endpoint) = endpoint.filter(|it| !it.is_empty()) else {
            return Ok((None, TraceExport(None)));
        };
        let exporter = exporter(endpoint)
            .with_context(|| {
                format!(
                    "--traces (or OTEL_EXPORTER_OTLP_ENDPOINT) {endpoint} cannot be used; give it \
                     as http://HOST:4317"
                )
            })
            .map_err(WrongSettings)?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource(command))
            .build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("sqlenv"))
            .with_filter(Targets::new().with_target(TRACES, LevelFilter::TRACE));
        Ok((Some(layer), TraceExport(Some(provider))))
    }

    /// Returns what sends spans. tonic accepts an address without a scheme or a host and fails at
    /// each export instead, and the exporter has no TLS.
    fn exporter(endpoint: &str) -> Result<SpanExporter> {
        let address: Uri = endpoint.parse()?;
        ensure!(
            address.scheme_str() == Some("http"),
            "its scheme is not http"
        );
        ensure!(
            address.host().is_some_and(|host| !host.is_empty()),
            "it has no host"
        );
        let exporter = SpanExporter::builder().with_tonic();
        Ok(exporter.with_endpoint(endpoint).build()?)
    }

    /// Describes the process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have precedence.
    fn resource(command: &str) -> Resource {
        let resource = Resource::builder().build();
        match resource.get(&Key::from_static_str("service.name")) {
            Some(Value::String(name)) if !name.as_str().starts_with("unknown_service") => resource,
            _ => Resource::builder()
                .with_service_name(format!("sqlenv-{command}"))
                .build(),
        }
    }
}
