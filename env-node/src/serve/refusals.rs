//! Counts refused requests, no matter which layer refused them.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use tonic::Code;

use crate::metrics;

/// Counts a response that is a refusal, by protocol and code.
pub(super) async fn count(
    State(protocol): State<&'static str>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    if let Some(code) = refusal_code(&response) {
        metrics::call_refused(protocol, code);
    }
    response
}

/// Returns the code of a refusal: gRPC's, which is in the headers of a response without a message,
/// or HTTP's status.
fn refusal_code(response: &Response) -> Option<String> {
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
    fn refusals_have_the_code_of_their_protocol() {
        for (response, code) in [
            (Status::not_found("gone").into_http(), Some("NotFound")),
            (StatusCode::SERVICE_UNAVAILABLE.into_response(), Some("503")),
            (StatusCode::NO_CONTENT.into_response(), None),
        ] {
            assert_eq!(refusal_code(&response).as_deref(), code);
        }
    }
}
