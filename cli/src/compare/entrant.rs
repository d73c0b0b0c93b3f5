//! A policy that takes part in a comparison, as the command line names it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use actor::{Engine, EngineSettings, EpisodeSettings, ModelPolicy, Policy};
use anyhow::{Context as _, Result, bail, ensure};
use baselines::{ChatApi, OraclePolicy, RandomPolicy, ScriptedPolicy, Solutions};
use policy::{Chat, Model, SamplingSettings};

use super::{CompareArgs, Round};
use crate::{
    config::RunConfig, eval_command::run_of, evaluation::episode_settings, model_source, setup,
    setup::Setup,
};

/// How completions are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    Greedy,
    Sampled,
}

/// A policy before it is opened.
pub(super) struct Entrant {
    name: String,
    kind: Kind,
    /// The settings, with the limits of the run whose model it is.
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
pub(super) enum Player {
    Random(Arc<Chat>),
    Oracle(Arc<Chat>, Arc<Solutions>),
    Model(Arc<Chat>, Engine),
    /// The chat is that of the embedded policy, which a chat API does not need.
    Api(Arc<Chat>, ChatApi),
}

/// A policy with its decoding.
pub(super) enum DecodingPolicy {
    Policy(Box<dyn Policy>),
    Chat(ChatApi),
}

impl Entrant {
    /// Reads all names, and checks what can be checked without opening models.
    pub(super) fn parse_all(args: &CompareArgs, config: &RunConfig) -> Result<Vec<Self>> {
        let key = args.api_key_file.as_deref().map(read_key).transpose()?;
        for shots in &args.shots {
            ensure!(
                [0, 1, 3].contains(shots),
                "--shots has {shots}; give 0, 1 or 3, separated by commas"
            );
        }
        let parse = |name: &String| Self::parse(name, config, key.as_ref());
        args.policies.iter().map(parse).collect()
    }

    fn parse(name: &str, config: &RunConfig, key: Option<&String>) -> Result<Self> {
        let mut config = config.clone();
        let kind = match name {
            "random" => Kind::Random,
            "oracle" => Kind::Oracle,
            "base" => Kind::Base,
            _ => match name.strip_prefix("openai:") {
                Some(rest) => Kind::Api(chat_api(rest, key)?),
                None => Kind::Folder(folder(name, &mut config)?),
            },
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

    pub(super) fn open(&self, round: &Round<'_>) -> Result<Player> {
        let base = || policy::tiny::base();
        let chat = || Ok::<_, anyhow::Error>(Arc::new(base()?.chat));
        Ok(match &self.kind {
            Kind::Random => Player::Random(chat()?),
            Kind::Oracle => Player::Oracle(chat()?, Arc::clone(&round.setup.solutions)),
            Kind::Base => self.engine(&base()?)?,
            Kind::Folder(folder) => {
                self.engine(&setup::open_model(folder, self.config.placement())?)?
            }
            Kind::Api(api) => Player::Api(chat()?, api.clone()),
        })
    }

    fn engine(&self, model: &Model) -> Result<Player> {
        let settings = EngineSettings {
            slots: self.config.evaluation.concurrency,
            ..self.config.actor.engine.clone()
        };
        let context_tokens = self.config.learner.rollout.max_context_tokens as usize;
        let placement = self.config.placement();
        let engine = Engine::spawn(model, 0, context_tokens, &settings, placement)?;
        Ok(Player::Model(Arc::new(model.chat.clone()), engine))
    }
}

impl Player {
    pub(super) fn episode_settings(
        &self,
        setup: &Setup,
        config: &RunConfig,
        shots: u32,
    ) -> EpisodeSettings {
        let (Self::Random(chat)
        | Self::Oracle(chat, _)
        | Self::Model(chat, _)
        | Self::Api(chat, _)) = self;
        let mut rollout = config.learner.rollout.clone();
        rollout.shots = shots;
        episode_settings(&setup.env, chat, &rollout, config.actor.env_retry)
    }

    /// Returns the policy that decodes in this way.
    pub(super) fn at(&self, config: &RunConfig, decoding: Decoding) -> DecodingPolicy {
        let sampling = match decoding {
            Decoding::Greedy => SamplingSettings::greedy(),
            Decoding::Sampled => config.learner.rollout.sampling,
        };
        DecodingPolicy::Policy(match self {
            Self::Random(chat) => Box::new(ScriptedPolicy::new(Arc::clone(chat), RandomPolicy)),
            Self::Oracle(chat, solutions) => {
                let oracle = OraclePolicy(Arc::clone(solutions));
                Box::new(ScriptedPolicy::new(Arc::clone(chat), oracle))
            }
            Self::Model(_, engine) => Box::new(ModelPolicy::new(engine.clone(), sampling)),
            Self::Api(_, api) => {
                let most = config.learner.rollout.max_completion_tokens as usize;
                let temperature = match decoding {
                    Decoding::Greedy => 0.0,
                    Decoding::Sampled => sampling.temperature,
                };
                return DecodingPolicy::Chat(api.clone().sampling(most, temperature));
            }
        })
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

/// Returns the model folder, and takes over the limits of its run.
fn folder(name: &str, config: &mut RunConfig) -> Result<PathBuf> {
    let folder = model_source::find(Path::new(name))?;
    ensure!(
        folder.join("config.json").is_file(),
        "{name} is no policy: give random, oracle, base, openai:URL,MODEL, a run folder, or a \
         model folder with config.json, tokenizer.json and model.safetensors"
    );
    if let Some((_, run)) = run_of(&folder)? {
        let temperature = config.learner.rollout.sampling.temperature;
        config.learner.rollout = run.learner.rollout;
        config.learner.rollout.sampling.temperature = temperature;
    }
    Ok(folder)
}
