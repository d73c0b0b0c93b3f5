//! A policy that takes part in a comparison, as the command line names it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use actor::Engine;
use anyhow::{Context as _, Result, bail, ensure};
use baselines::ChatApi;
use policy::Chat;
use report::{DecodingMode, EpisodeLimits, PolicyName};

use super::{CompareArgs, Round};
use crate::{config::RunConfig, evaluation::sampling, model_source, setup};

/// What a name of the command line means.
pub(super) enum Kind {
    Random,
    Oracle,
    /// The embedded policy.
    Base,
    /// A model folder.
    Folder(PathBuf),
    Api(ChatApi),
}

/// A policy before it is opened.
pub(super) struct ComparedPolicy<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    /// The settings, with the limits of this policy.
    pub(super) config: RunConfig,
}

/// An opened policy.
pub(super) struct OpenPolicy<'a> {
    pub(super) policy: &'a ComparedPolicy<'a>,
    /// The settings of its episodes.
    pub(super) config: RunConfig,
    /// The chat of the model; of the embedded policy, which others do not need.
    pub(super) chat: Arc<Chat>,
    /// The engines of a model. Other policies have none.
    pub(super) engines: Vec<Engine>,
}

impl Kind {
    /// Reads all names.
    pub(super) fn parse_all(args: &CompareArgs) -> Result<Vec<Self>> {
        let key = args.api_key_file.as_deref().map(read_key).transpose()?;
        let parse = |name: &String| Self::parse(name, key.as_ref());
        args.policies.iter().map(parse).collect()
    }

    fn parse(name: &str, key: Option<&String>) -> Result<Self> {
        Ok(match name {
            "random" => Self::Random,
            "oracle" => Self::Oracle,
            "base" => Self::Base,
            _ => match name.strip_prefix("openai:") {
                Some(rest) => Self::Api(chat_api(rest, key)?),
                None => Self::Folder(folder(name)?),
            },
        })
    }

    /// Returns the name under which reports have such a policy.
    pub(super) fn reported(&self) -> PolicyName {
        match self {
            Self::Random => PolicyName::Random,
            Self::Oracle => PolicyName::Oracle,
            Self::Base => PolicyName::Base,
            Self::Folder(_) | Self::Api(_) => PolicyName::Model,
        }
    }
}

impl ComparedPolicy<'_> {
    /// Returns the numbers of examples with which it plays: the wanted ones, or that of its
    /// settings. Scripted policies read none.
    pub(super) fn shots(&self, wanted: Option<&[u32]>) -> Vec<u32> {
        match wanted {
            _ if self.kind.reported().is_scripted() => vec![0],
            Some(wanted) => wanted.to_vec(),
            None => vec![self.config.learner.rollout.shots],
        }
    }

    /// Returns how often it is sampled.
    pub(super) fn samples(&self, wanted: u32) -> u32 {
        match self.kind.reported().is_scripted() {
            true => 0,
            false => wanted,
        }
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

    pub(super) fn open(&self, round: &Round<'_>) -> Result<OpenPolicy<'_>> {
        let mut config = self.config.clone();
        let model = match &self.kind {
            Kind::Folder(folder) => setup::open_model(folder, config.placement())?,
            _ => policy::embedded::base()?,
        };
        let engines = match &self.kind {
            Kind::Base | Kind::Folder(_) => {
                // The limits may be those of another model, which reads more.
                let wanted = &mut config.learner.rollout.max_context_tokens;
                *wanted = model_source::fitted_context(*wanted, &model.config);
                round.evaluator(&config).engines(&model, 0)?
            }
            Kind::Random | Kind::Oracle | Kind::Api(_) => Vec::new(),
        };
        Ok(OpenPolicy {
            policy: self,
            config,
            chat: Arc::new(model.chat),
            engines,
        })
    }
}

impl OpenPolicy<'_> {
    pub(super) fn limits(&self) -> EpisodeLimits {
        let rollout = &self.config.learner.rollout;
        EpisodeLimits {
            step_budget: rollout.step_budget,
            completion_tokens: rollout.max_completion_tokens,
            context_tokens: rollout.max_context_tokens,
        }
    }

    /// Returns the chat API of the policy with this decoding, if it is behind one.
    pub(super) fn chat_api(&self, mode: DecodingMode) -> Option<ChatApi> {
        let Kind::Api(api) = &self.policy.kind else {
            return None;
        };
        let rollout = &self.config.learner.rollout;
        let most = rollout.max_completion_tokens as usize;
        let temperature = sampling(mode, rollout).temperature;
        Some(api.clone().sampling(most, temperature))
    }
}

fn read_key(file: &Path) -> Result<String> {
    let key = fs::read_to_string(file)
        .with_context(|| format!("--api-key-file {} cannot be read", file.display()))?;
    let key = key.trim();
    ensure!(
        !key.is_empty(),
        "--api-key-file {} is empty; put the key into it, or leave the option out",
        file.display()
    );
    Ok(key.to_owned())
}

/// Reads what follows `openai:`.
fn chat_api(address: &str, key: Option<&String>) -> Result<ChatApi> {
    let Some((url, model)) = address
        .rsplit_once(',')
        .filter(|(_, model)| !model.is_empty())
    else {
        bail!(
            "a policy openai:URL names no model; write openai:URL,MODEL, for example \
             openai:http://127.0.0.1:8000/v1,qwen3"
        );
    };
    ChatApi::new(url, model, key.cloned()).map_err(anyhow::Error::msg)
}

/// Returns the model folder.
fn folder(name: &str) -> Result<PathBuf> {
    let folder = model_source::find(Path::new(name))?;
    ensure!(
        folder.join("config.json").is_file(),
        "{name} is no policy: give random, oracle, base, openai:URL,MODEL, a run folder, or a \
         model folder with config.json, tokenizer.json and model.safetensors"
    );
    Ok(folder)
}
