//! A model behind an OpenAI-compatible chat API, so that any served model is a baseline.

use std::time::Duration;

use actor::ChatModel;
use async_trait::async_trait;
use reqwest::{Client, StatusCode, header};
use serde_json::{Value, json};
use tonic::Status;

/// How long a server may take to be reached. Who asks for a reply limits the time of the answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const MOST_BYTES: usize = 16 << 20;
/// Characters of a server's answer that an error repeats.
const SHOWN_CHARACTERS: usize = 300;

/// A model behind a chat API.
#[derive(Clone, Debug)]
pub struct ChatApi {
    client: Client,
    /// Address of the method, `.../chat/completions`.
    url: String,
    model: String,
    key: Option<String>,
    max_tokens: usize,
    temperature: f32,
}

impl ChatApi {
    /// Reaches `model` at `base`, such as `http://127.0.0.1:8000/v1`. `key` is sent as a bearer
    /// token.
    ///
    /// # Errors
    /// The address or the key cannot be used.
    pub fn new(base: &str, model: &str, key: Option<String>) -> Result<Self, String> {
        // A provider that is there already serves as well.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let url = format!("{}/chat/completions", base.trim_end_matches('/'));
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).build();
        let client = client.map_err(|fault| format!("no HTTP client: {fault}"))?;
        let has_more = |url: &reqwest::Url| {
            !url.username().is_empty() || url.password().is_some() || url.query().is_some()
        };
        if reqwest::Url::parse(&url).is_ok_and(|url| has_more(&url)) {
            return Err(
                "the address of a chat API must have neither a password nor a query, because it \
                 is printed; give a key by --api-key-file FILE"
                    .to_owned(),
            );
        }
        let request = client.post(&url).build();
        // The address is not repeated: what cannot be read may have a password.
        request.map_err(|fault| {
            format!(
                "the address of the chat API cannot be read ({}); give http://HOST:PORT/v1",
                root_cause(&fault.without_url())
            )
        })?;
        if key
            .as_ref()
            .is_some_and(|key| header::HeaderValue::from_str(key).is_err())
        {
            return Err("the API key holds characters that a header cannot have".to_owned());
        }
        Ok(Self {
            client,
            url,
            model: model.to_owned(),
            key,
            max_tokens: 512,
            temperature: 0.0,
        })
    }

    /// Samples at most `max_tokens` tokens a turn, at `temperature` (0: greedy).
    #[must_use]
    pub fn sampling(mut self, max_tokens: usize, temperature: f32) -> Self {
        self.max_tokens = max_tokens;
        self.temperature = temperature;
        self
    }

    /// Tries whether a server listens at the address; what it answers is not looked at.
    ///
    /// # Errors
    /// None does. The error names the address and the remedy.
    pub async fn reach(&self) -> Result<(), String> {
        // Long enough for a connection; a server that does not answer this request is reached too.
        let request = self.client.get(&self.url).timeout(2 * CONNECT_TIMEOUT);
        match request.send().await {
            Err(fault) if fault.is_connect() => Err(format!(
                "{}: no server can be reached ({}); start it, or correct the address",
                self.url,
                root_cause(&fault)
            )),
            _ => Ok(()),
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<Vec<u8>, Status> {
        let mut request = self
            .client
            .post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let away = |fault: reqwest::Error| self.away(&fault);
        let mut response = request.send().await.map_err(away)?;
        let status = response.status();
        // A server need not announce a length, so what arrives is counted.
        let mut answer = Vec::new();
        while let Some(part) = response.chunk().await.map_err(away)? {
            answer.extend_from_slice(&part);
            if answer.len() > MOST_BYTES {
                let text = format!("{}: the answer has more than {MOST_BYTES} bytes", self.url);
                return Err(Status::invalid_argument(text));
            }
        }
        match status.is_success() {
            true => Ok(answer),
            false => Err(self.refused(status, &answer)),
        }
    }

    fn away(&self, fault: &reqwest::Error) -> Status {
        let cause = root_cause(fault);
        Status::unavailable(format!(
            "{}: no reply ({cause}); check that the server runs",
            self.url
        ))
    }

    /// Returns the status of an HTTP error. Overload and faults of the server may pass.
    fn refused(&self, status: StatusCode, answer: &[u8]) -> Status {
        let said = shortened(&String::from_utf8_lossy(answer));
        let text = format!("{} answers {status}: {said}", self.url);
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Status::unavailable(text)
            }
            _ if status.is_server_error() => Status::unavailable(text),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Status::permission_denied(format!("{text}; give a key by --api-key-file FILE"))
            }
            StatusCode::NOT_FOUND => Status::invalid_argument(format!(
                "{text}; check the name of the model, and the address, which often ends with /v1"
            )),
            _ => Status::invalid_argument(text),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS).collect()
}

/// Returns the innermost reason, which reqwest does not print.
fn root_cause(fault: &dyn std::error::Error) -> String {
    match fault.source() {
        Some(source) => root_cause(source),
        None => fault.to_string(),
    }
}

#[async_trait]
impl ChatModel for ChatApi {
    async fn reply(&self, messages: &[Value], tools: &[Value]) -> Result<Value, Status> {
        let request = json!({
            "model": self.model,
            "messages": messages,
            "tools": tools,
            "max_tokens": self.max_tokens,
            "temperature": decimal(self.temperature),
        });
        let answer = self.post(request.to_string().into_bytes()).await?;
        let invalid = |fault| Status::invalid_argument(format!("{}: {fault}", self.url));
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|fault| invalid(format!("no JSON: {fault}")))?;
        message_of(&answer).map_err(invalid)
    }
}

/// Returns the number that a user wrote: as `f64`, 0.7 would have the digits of its nearest `f32`.
fn decimal(value: f32) -> f64 {
    let written = value.to_string().parse();
    written.unwrap_or(value.into())
}

/// Returns the message of an answer, or why there is none.
fn message_of(answer: &Value) -> Result<Value, String> {
    let fault = answer.pointer("/error/message").and_then(Value::as_str);
    match (answer.pointer("/choices/0/message"), fault) {
        (Some(message @ Value::Object(_)), _) => Ok(message.clone()),
        // Some gateways report a spent quota with the status 200.
        (_, Some(fault)) => Err(format!("the server reports: {}", shortened(fault))),
        _ => Err(
            "the answer has no choices[0].message; is this the address of a chat API?".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use proto::{may_pass, status_text};
    use tokio::net::TcpSocket;

    use super::*;

    #[test]
    fn errors_name_the_address_and_say_what_may_pass() {
        let api = ChatApi::new("http://127.0.0.1:9/v1/", "m", None).unwrap();
        assert_eq!(api.url, "http://127.0.0.1:9/v1/chat/completions");
        for (code, passes) in [(429, true), (503, true), (401, false), (404, false)] {
            let status = api.refused(StatusCode::from_u16(code).unwrap(), b"why");
            assert_eq!(may_pass(&status), passes, "{status}");
            let text = status_text(&status);
            assert!(
                text.contains("127.0.0.1:9") && text.contains("why"),
                "{text}"
            );
        }
        let status = api.refused(StatusCode::NOT_FOUND, b"why");
        assert!(status.message().ends_with("/v1"), "{status}");
        assert!(ChatApi::new("127.0.0.1:9", "m", None).is_err());
        assert!(ChatApi::new("http://a/v1", "m", Some("a\nb".to_owned())).is_err());
        for (unreadable, why) in [
            ("http://user:secret@h:99999/v1", "invalid port number"),
            ("user:secret@h/v1", "give http://HOST:PORT/v1"),
        ] {
            let fault = ChatApi::new(unreadable, "m", None).unwrap_err();
            assert!(fault.contains(why) && !fault.contains("secret"), "{fault}");
        }
        for secret in ["http://user:secret@a/v1", "http://a/v1?key=secret"] {
            let fault = ChatApi::new(secret, "m", None).unwrap_err();
            assert!(
                fault.contains("--api-key-file") && !fault.contains("secret"),
                "{fault}"
            );
        }
    }

    #[test]
    fn an_answer_without_a_message_is_an_error() {
        let message = json!({"role": "assistant", "content": "x"});
        let answer = json!({"choices": [{"message": message}], "error": null});
        assert_eq!(message_of(&answer), Ok(message));
        let fault = message_of(&json!({"error": {"message": "no credits"}})).unwrap_err();
        assert_eq!(fault, "the server reports: no credits");
        for choices in [
            json!(null),
            json!([]),
            json!("x"),
            json!([{"message": null}]),
        ] {
            let fault = message_of(&json!({"choices": choices})).unwrap_err();
            assert!(
                fault.contains("no choices[0].message"),
                "{choices}: {fault}"
            );
        }
        for answer in [json!({}), json!([]), json!("x"), json!({"error": "x"})] {
            assert!(message_of(&answer).is_err(), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_named_once_with_the_reason() {
        // It keeps its port from other tests, and does not listen.
        let nobody = TcpSocket::new_v4().unwrap();
        nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = nobody.local_addr().unwrap();
        let api = ChatApi::new(&format!("http://{address}/v1"), "m", None).unwrap();
        let fault = api.reply(&[], &[]).await.unwrap_err();
        assert!(may_pass(&fault), "{fault}");
        let text = status_text(&fault);
        assert!(text.contains("no reply (Connection refused"), "{text}");
        assert_eq!(text.matches(&address.to_string()).count(), 1, "{text}");
    }

    /// A chunked answer announces no length.
    #[tokio::test]
    async fn an_answer_without_a_length_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || -> io::Result<u64> {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut [0])?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
            for _ in 0..17 {
                stream.write_all(chunk.as_bytes())?;
            }
            stream.write_all(b"0\r\n\r\n")?;
            // Closed with unread input, the connection would lose what the client has not read.
            io::copy(&mut stream, &mut io::sink())
        });
        let api = ChatApi::new(&format!("http://{address}/v1"), "m", None).unwrap();
        let fault = api.reply(&[], &[]).await.unwrap_err();
        assert!(fault.message().contains("has more than"), "{fault}");
    }
}
