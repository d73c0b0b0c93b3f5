//! Counts what a face refuses, whoever on the way refused it.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use tonic::Code;

use crate::metrics;

/// Counts an answer that is a refusal, under its face.
pub(super) async fn count(
    State(face): State<&'static str>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    if let Some(code) = refusal(&response) {
        metrics::call_refused(face, code);
    }
    response
}

/// The code of a refusal: gRPC's, which a call without an answer has in its head, or HTTP's.
fn refusal(response: &Response) -> Option<String> {
    if let Some(code) = response.headers().get("grpc-status") {
        let code = Code::from_bytes(code.as_bytes());
        return (code != Code::Ok).then(|| format!("{code:?}"));
    }
    let status = response.status();
    (status.is_client_error() || status.is_server_error()).then(|| status.as_u16().to_string())
}

#[cfg(test)]
mod tests {
    use axum::{http::StatusCode, response::IntoResponse};
    use tonic::Status;

    use super::*;

    #[test]
    fn refusals_have_the_code_of_their_language() {
        for (response, code) in [
            (Status::not_found("gone").into_http(), Some("NotFound")),
            (StatusCode::SERVICE_UNAVAILABLE.into_response(), Some("503")),
            (StatusCode::NO_CONTENT.into_response(), None),
        ] {
            assert_eq!(refusal(&response).as_deref(), code);
        }
    }
}
