//! Sums of Prometheus metrics, read from the admin port of a role.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// The longest wait for a process that shares the machine with computation.
const PATIENCE: Duration = Duration::from_secs(5);

/// The metrics of a process at one moment, in the text format.
pub(super) struct Scrape(String);

impl Scrape {
    /// Reads the metrics; none while the port is closed.
    pub(super) fn of(address: SocketAddr) -> Option<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        // HTTP/1.0 answers have neither chunks nor a connection to keep.
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.0 200")
            .then(|| Self(body.to_owned()))
    }

    /// Returns the sum of the samples of a metric whose labels contain `label`.
    pub(super) fn sum(&self, metric: &str, label: &str) -> f64 {
        let samples = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.strip_prefix(metric)?;
            let is_metric = labels.is_empty() || labels.starts_with('{');
            (is_metric && labels.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        samples.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_added_up_by_label() {
        let text =
            "# TYPE a_total counter\na_total{of=\"x\"} 2\na_total{of=\"y\"} 3\na_total_more 7\n";
        let scrape = Scrape(text.to_owned());
        assert_eq!(scrape.sum("a_total", ""), 5.0);
        assert_eq!(scrape.sum("a_total", "of=\"y\""), 3.0);
        assert_eq!(scrape.sum("a", ""), 0.0);
    }
}
