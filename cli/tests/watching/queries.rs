//! Asks a Prometheus server for what it has recorded since a point in time.

use std::{collections::BTreeSet, thread::sleep, time::Duration};

use serde_json::Value;

use crate::{
    expressions::{of_alerts, of_dashboard, selectors, without_variables},
    http::get,
};

/// Encodes a parameter of a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A running Prometheus server.
pub(crate) struct Prometheus {
    address: String,
    /// Unix time in seconds from which on queries look.
    start: u64,
}

impl Prometheus {
    /// Waits until the server at this address is ready. Queries look back to this moment.
    pub(crate) fn ready(address: &str) -> Self {
        while get(address, "/-/ready").is_none() {
            sleep(Duration::from_millis(20));
        }
        let mut server = Self {
            address: address.to_owned(),
            start: 0,
        };
        server.start = server.unix_seconds();
        server
    }

    /// Returns the finite values of each series of a query, and the series' labels.
    pub(crate) fn series(&self, query: &str) -> Vec<(Value, Vec<f64>)> {
        let (start, end) = (self.start, self.unix_seconds() + 1);
        let query = encoded(query);
        let path = format!("query_range?query={query}&start={start}&end={end}&step=1");
        let values = |series: &Value| {
            let values = series["values"].as_array().unwrap().iter();
            let values = values.map(|it| it[1].as_str().unwrap().parse::<f64>().unwrap());
            let finite = values.filter(|value| value.is_finite()).collect();
            (series["metric"].clone(), finite)
        };
        let answer = self.api(&path);
        let series = answer["result"].as_array().unwrap();
        series.iter().map(values).collect()
    }

    /// Returns which queries of the dashboard and which selectors of the alerts have no finite
    /// value. Most alerts themselves have none, by design.
    pub(crate) fn without_data(&self) -> BTreeSet<String> {
        let of_alerts = of_alerts().into_iter().flat_map(|it| selectors(&it));
        let is_empty = |query: &String| {
            self.series(&without_variables(query))
                .iter()
                .all(|(_, values)| values.is_empty())
        };
        of_dashboard()
            .into_iter()
            .chain(of_alerts)
            .filter(is_empty)
            .collect()
    }

    /// Returns the names of the alerts that fire. Each alert must be loaded and without an error.
    pub(crate) fn firing(&self) -> Vec<String> {
        let answer = self.api("rules");
        let groups = answer["groups"].as_array().unwrap().iter();
        let rules: Vec<&Value> = groups
            .flat_map(|it| it["rules"].as_array().unwrap())
            .collect();
        assert_eq!(rules.len(), of_alerts().len());
        rules
            .iter()
            .for_each(|it| assert_eq!(it["health"], "ok", "{it}"));
        let firing = rules.iter().filter(|it| it["state"] == "firing");
        firing.map(|it| it["name"].to_string()).collect()
    }

    fn unix_seconds(&self) -> u64 {
        let answer = self.api(&format!("query?query={}", encoded("time()")));
        let time = answer["result"][1].as_str().unwrap();
        time.parse::<f64>().unwrap() as u64
    }

    /// Returns `data` of an answer.
    fn api(&self, path: &str) -> Value {
        let body = get(&self.address, &format!("/api/v1/{path}"));
        let body = body.unwrap_or_else(|| panic!("{path} is refused"));
        let body: Value = serde_json::from_str(&body).unwrap();
        body["data"].clone()
    }
}
