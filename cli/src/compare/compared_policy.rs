//! A policy that takes part in a comparison, as the command line names it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use actor::{Engine, EpisodeSettings, Policy};
use anyhow::{Context as _, Result, bail, ensure};
use baselines::{ChatApi, OraclePolicy, RandomPolicy, ScriptedPolicy, Solutions};
use learner::config::RolloutConfig;
use policy::{Chat, Model, SamplingSettings};
use report::EpisodeLimits;

use super::{CompareArgs, Round, shared_settings::SharedSettings};
use crate::{
    config::RunConfig,
    evaluation::{episode_settings, model_policy, spawn_engines},
    model_source,
    setup::{self, Setup},
    threads,
};

/// How completions are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    Greedy,
    Sampled,
}

/// A policy before it is opened.
pub(super) struct ComparedPolicy {
    name: String,
    kind: Kind,
    /// The settings, with the limits of this policy.
    config: RunConfig,
}

enum Kind {
    Random,
    Oracle,
    /// The embedded policy.
    Base,
    /// A model folder.
    Folder(PathBuf),
    Api(ChatApi),
}

/// An opened policy.
pub(super) struct OpenPolicy {
    /// The chat of the model; of the embedded policy, which others do not need.
    chat: Arc<Chat>,
    source: ActionSource,
    rollout: RolloutConfig,
}

/// How a policy chooses its actions.
enum ActionSource {
    Random,
    Oracle(Arc<Solutions>),
    /// On several engines.
    Model(Vec<Engine>),
    Api(ChatApi),
}

/// A policy with its decoding.
pub(super) enum DecodingPolicy {
    /// Copies, which share the questions.
    Policies(Vec<Box<dyn Policy>>),
    Chat(ChatApi),
}

impl ComparedPolicy {
    /// Reads all names.
    pub(super) fn parse_all(args: &CompareArgs, shared: &SharedSettings) -> Result<Vec<Self>> {
        let key = args.api_key_file.as_deref().map(read_key).transpose()?;
        let parse = |name: &String| Self::parse(name, args, shared, key.as_ref());
        args.policies.iter().map(parse).collect()
    }

    fn parse(
        name: &str,
        args: &CompareArgs,
        shared: &SharedSettings,
        key: Option<&String>,
    ) -> Result<Self> {
        let kind = match name {
            "random" => Kind::Random,
            "oracle" => Kind::Oracle,
            "base" => Kind::Base,
            _ => match name.strip_prefix("openai:") {
                Some(rest) => Kind::Api(chat_api(rest, key)?),
                None => Kind::Folder(folder(name)?),
            },
        };
        let config = match &kind {
            Kind::Random | Kind::Oracle | Kind::Base => shared.config.clone(),
            Kind::Folder(folder) => shared.of_model(args, Some(folder))?,
            Kind::Api(_) => shared.of_model(args, None)?,
        };
        Ok(Self {
            name: name.to_owned(),
            kind,
            config,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Returns the numbers of examples with which it plays: scripted policies read none.
    pub(super) fn shots(&self, wanted: &[u32]) -> Vec<u32> {
        match self.is_scripted() {
            true => vec![0],
            false => wanted.to_vec(),
        }
    }

    /// Returns how often it is sampled.
    pub(super) fn samples(&self, wanted: u32) -> u32 {
        match self.is_scripted() {
            true => 0,
            false => wanted,
        }
    }

    fn is_scripted(&self) -> bool {
        matches!(self.kind, Kind::Random | Kind::Oracle)
    }

    /// Opens a model, and tries whether a chat API can be reached, so that what is broken is found
    /// before hours of work.
    pub(super) async fn try_out(&self) -> Result<()> {
        match &self.kind {
            Kind::Api(api) => api.reach().await.map_err(anyhow::Error::msg),
            Kind::Folder(folder) => setup::open_model(folder, self.config.placement()).map(drop),
            Kind::Random | Kind::Oracle | Kind::Base => Ok(()),
        }
    }

    pub(super) fn open(&self, round: &Round<'_>) -> Result<OpenPolicy> {
        match &self.kind {
            Kind::Random => self.without_model(ActionSource::Random),
            Kind::Oracle => {
                self.without_model(ActionSource::Oracle(Arc::clone(&round.setup.solutions)))
            }
            Kind::Base => self.with_model(&policy::tiny::base()?),
            Kind::Folder(folder) => {
                self.with_model(&setup::open_model(folder, self.config.placement())?)
            }
            Kind::Api(api) => self.without_model(ActionSource::Api(api.clone())),
        }
    }

    fn without_model(&self, source: ActionSource) -> Result<OpenPolicy> {
        Ok(OpenPolicy {
            chat: Arc::new(policy::tiny::base()?.chat),
            source,
            rollout: self.config.learner.rollout.clone(),
        })
    }

    fn with_model(&self, model: &Model) -> Result<OpenPolicy> {
        // The limits may be those of another model, which reads more.
        let mut rollout = self.config.learner.rollout.clone();
        let most = u32::try_from(model.config.max_positions).unwrap_or(u32::MAX);
        rollout.max_context_tokens = rollout.max_context_tokens.min(most);
        let count = threads::engines(&self.config)?;
        let limits = (0, rollout.max_context_tokens);
        let engines = spawn_engines(&self.config, model, limits, count)?;
        Ok(OpenPolicy {
            chat: Arc::new(model.chat.clone()),
            source: ActionSource::Model(engines),
            rollout,
        })
    }
}

impl OpenPolicy {
    pub(super) fn limits(&self) -> EpisodeLimits {
        EpisodeLimits {
            step_budget: self.rollout.step_budget,
            completion_tokens: self.rollout.max_completion_tokens,
            context_tokens: self.rollout.max_context_tokens,
        }
    }

    pub(super) fn episode_settings(
        &self,
        setup: &Setup,
        config: &RunConfig,
        shots: u32,
    ) -> EpisodeSettings {
        let rollout = self.rollout(shots);
        episode_settings(&setup.env, &self.chat, &rollout, config.actor.env_retry)
    }

    /// Returns the settings of its rollouts with so many solved examples.
    fn rollout(&self, shots: u32) -> RolloutConfig {
        RolloutConfig {
            shots,
            ..self.rollout.clone()
        }
    }

    /// Returns the policy with so many solved examples and this decoding.
    pub(super) fn with_decoding(&self, shots: u32, decoding: Decoding) -> Result<DecodingPolicy> {
        let sampling = match decoding {
            Decoding::Greedy => SamplingSettings::greedy(),
            Decoding::Sampled => self.rollout.sampling,
        };
        let chat = || Arc::clone(&self.chat);
        Ok(DecodingPolicy::Policies(match &self.source {
            ActionSource::Random => vec![Box::new(ScriptedPolicy::new(chat(), RandomPolicy))],
            ActionSource::Oracle(solutions) => {
                let oracle = OraclePolicy(Arc::clone(solutions));
                vec![Box::new(ScriptedPolicy::new(chat(), oracle))]
            }
            ActionSource::Model(engines) => {
                let rollout = self.rollout(shots);
                let policy = |engine| -> Result<Box<dyn Policy>> {
                    Ok(Box::new(model_policy(
                        engine, &self.chat, &rollout, sampling,
                    )?))
                };
                engines.iter().map(policy).collect::<Result<_>>()?
            }
            ActionSource::Api(api) => {
                let most = self.rollout.max_completion_tokens as usize;
                let temperature = match decoding {
                    Decoding::Greedy => 0.0,
                    Decoding::Sampled => sampling.temperature,
                };
                return Ok(DecodingPolicy::Chat(
                    api.clone().sampling(most, temperature),
                ));
            }
        }))
    }
}

fn read_key(file: &Path) -> Result<String> {
    let key = fs::read_to_string(file)
        .with_context(|| format!("--api-key-file {} cannot be read", file.display()))?;
    Ok(key.trim().to_owned())
}

/// Reads what follows `openai:`.
fn chat_api(address: &str, key: Option<&String>) -> Result<ChatApi> {
    let Some((url, model)) = address
        .rsplit_once(',')
        .filter(|(_, model)| !model.is_empty())
    else {
        bail!(
            "openai:{address} names no model; write openai:URL,MODEL, for example \
             openai:http://127.0.0.1:8000/v1,qwen3"
        );
    };
    ChatApi::new(url, model, key.cloned()).map_err(anyhow::Error::msg)
}

/// Returns the model folder.
pub(super) fn folder(name: &str) -> Result<PathBuf> {
    let folder = model_source::find(Path::new(name))?;
    ensure!(
        folder.join("config.json").is_file(),
        "{name} is no policy: give random, oracle, base, openai:URL,MODEL, a run folder, or a \
         model folder with config.json, tokenizer.json and model.safetensors"
    );
    Ok(folder)
}
