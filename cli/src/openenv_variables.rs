//! The environment variables of OpenEnv, as defaults of the env-node role.
//!
//! Invariant: an empty variable counts as absent. A variable overrides the settings file; `--set`,
//! a flag or `SQLENV_LISTEN` overrides the variable.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, anyhow};
use env_node::Mode;

/// Address of the role if nothing else is given.
const LISTEN: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 8_000);

/// A source of environment variables.
pub(crate) struct Variables<F>(F);

impl Variables<fn(&str) -> Option<String>> {
    /// Returns the variables of this process.
    #[expect(
        clippy::disallowed_methods,
        reason = "OpenEnv's programs are set by the environment alone"
    )]
    pub(crate) fn of_process() -> Self {
        Self(|name| std::env::var(name).ok())
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns the settings that the variables stand for, in the form of `--set`.
    pub(crate) fn settings(&self) -> Result<Vec<String>> {
        let mut settings = Vec::new();
        if let Some(sessions) = self.get("MAX_CONCURRENT_ENVS") {
            let sessions: u32 = sessions.parse().ok().with_context(|| {
                format!("MAX_CONCURRENT_ENVS is {sessions:?}; give a number, or unset it")
            })?;
            settings.push(format!("env_node.openenv.max_sessions={sessions}"));
        }
        if let Some(mode) = self.get("OPENENV_MODE") {
            let known: Result<Mode, _> = mode.parse();
            known.map_err(|error| anyhow!("OPENENV_MODE: {error}, or unset it"))?;
            let mode = mode.to_ascii_lowercase();
            settings.push(format!("env_node.openenv.mode={mode}"));
        }
        if let Some(wanted) = self.get("ENABLE_WEB_INTERFACE") {
            let is_on = ["true", "1", "yes"].contains(&wanted.to_ascii_lowercase().as_str());
            settings.push(format!("env_node.web.enabled={is_on}"));
        }
        Ok(settings)
    }

    /// Returns the address that `HOST` and `PORT` give.
    pub(crate) fn listen(&self) -> Result<SocketAddr> {
        let host = match self.get("HOST") {
            None => LISTEN.0,
            Some(host) => host.parse().with_context(|| {
                format!(
                    "HOST is {host:?}; give an IP address such as 0.0.0.0, or use --listen \
                         ADDRESS:PORT"
                )
            })?,
        };
        let port = match self.get("PORT") {
            None => LISTEN.1,
            Some(port) => port.parse().with_context(|| {
                format!("PORT is {port:?}; give 0 to 65535, or use --listen ADDRESS:PORT")
            })?,
        };
        Ok((host, port).into())
    }

    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &'static [(&str, &str)]) -> Variables<impl Fn(&str) -> Option<String>> {
        Variables(|name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_settings() {
        for (set, settings) in [
            (
                &[("MAX_CONCURRENT_ENVS", "64")],
                "env_node.openenv.max_sessions=64",
            ),
            (
                &[("OPENENV_MODE", "Production")],
                "env_node.openenv.mode=production",
            ),
            (
                &[("ENABLE_WEB_INTERFACE", "True")],
                "env_node.web.enabled=true",
            ),
            (
                &[("ENABLE_WEB_INTERFACE", "no")],
                "env_node.web.enabled=false",
            ),
            (&[("ENABLE_WEB_INTERFACE", "")], ""),
            (&[("OPENENV_MODE", "")], ""),
        ] {
            assert_eq!(variables(set).settings().unwrap().concat(), settings);
        }
    }

    #[test]
    fn host_and_port_are_an_address() {
        for (set, address) in [
            (&[][..], "127.0.0.1:8000"),
            (&[("PORT", "7860")], "127.0.0.1:7860"),
            (&[("HOST", "0.0.0.0"), ("PORT", "")], "0.0.0.0:8000"),
            (&[("HOST", "::"), ("PORT", "0")], "[::]:0"),
        ] {
            assert_eq!(variables(set).listen().unwrap(), address.parse().unwrap());
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for set in [
            &[("MAX_CONCURRENT_ENVS", "many")],
            &[("OPENENV_MODE", "prod")],
        ] {
            let error = variables(set).settings().unwrap_err().to_string();
            assert!(
                error.contains(set[0].0) && error.contains(set[0].1),
                "{error}"
            );
        }
        for set in [&[("HOST", "my-machine")], &[("PORT", "70000")]] {
            let error = variables(set).listen().unwrap_err().to_string();
            assert!(
                error.contains(set[0].0) && error.contains("--listen"),
                "{error}"
            );
        }
    }
}
