//! What commands open first: the questions, an environment that serves them, and the policy.

use std::{collections::HashSet, path::Path, sync::Arc};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use baselines::Solutions;
use candle_core::Device;
use data::{Dataset, NO_LICENCE};
use env::{EnvError, EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings};
use learner::{LearnerConfig, LearnerError};
use policy::{DecoderConfig, Model, Placement, random::derive_seed};
use proto::{
    Credentials, EnvClient, Transport, TransportError, env_client, status_text,
    v1::{ListQuestionsRequest, Question},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    args::{EnvCredentials, LearnerCredentials, OWN_DATA_DIR},
    config::{DataConfig, ModelConfig, RunConfig, WrongSettings},
    progress::Progress,
    roles::fit_open_files,
    shutdown::read_unless_interrupted,
};

/// Questions and an environment in this process.
pub(crate) struct Setup {
    /// The questions with their gold answers.
    pub(crate) dataset: Arc<Dataset>,
    /// The environment that serves them: the one in this process, or an env-node.
    pub(crate) env: Transport,
    /// The solution of each question, which scripted policies know.
    pub(crate) solutions: Arc<Solutions>,
    /// Hash of questions and databases.
    pub(crate) data_sha256: String,
}

impl Setup {
    /// Opens the data and starts the environment.
    pub(crate) fn open(config: &RunConfig, progress: &Progress) -> Result<Self> {
        let dataset = open_dataset(&config.data, progress)?;
        report_left_out(&dataset, progress);
        Self::of_dataset(dataset, config, progress).context("in [env] or [env_node]")
    }

    /// Opens the data, starts the environment, and opens the policy to start from. A signal ends
    /// the wait.
    pub(crate) async fn open_with_base(
        config: &RunConfig,
        progress: &Progress,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Model)> {
        let (config, progress) = (config.clone(), progress.clone());
        let open = move || {
            // A model folder that cannot be used is named before data are built.
            let base = base_model(&config.model, config.seed, config.placement())?;
            check_context(&base.config, &config.model, &config.learner)?;
            Ok((Self::open(&config, &progress)?, base))
        };
        read_unless_interrupted(shutdown, open).await
    }

    /// Starts the environment on data that is open.
    pub(crate) fn of_dataset(
        dataset: Dataset,
        config: &RunConfig,
        progress: &Progress,
    ) -> Result<Self> {
        let solutions = Arc::new(dataset.questions.iter().collect());
        let (mut settings, databases) = (config.env.clone(), dataset.databases.len());
        let fit = |limit| env_node::fit_databases(&mut settings, limit, databases);
        fit_open_files(fit, progress);
        let environment = open_environment(dataset.clone(), settings)?;
        let data_sha256 = environment.data_sha256().to_owned();
        let node = open_node(environment, config.env_node.clone())?;
        Ok(Self {
            dataset: Arc::new(dataset),
            env: Transport::in_process(node.service()),
            solutions,
            data_sha256,
        })
    }

    /// Returns a client of the environment.
    pub(crate) fn env_client(&self) -> EnvClient {
        env_client(self.env.clone())
    }

    /// Returns all questions, in the order of the dataset.
    pub(crate) fn questions(&self) -> Vec<Question> {
        let questions = self.dataset.questions.iter();
        questions.map(env_node::question).collect()
    }

    /// Uses the env-node at `address` instead of the environment in this process.
    pub(crate) async fn play_on(
        &mut self,
        address: &str,
        credentials: &EnvCredentials,
    ) -> Result<()> {
        self.env = dial_serving_env(address, credentials).await?;
        let served =
            actor::list_questions(&self.env_client(), "", &actor::Retry::default()).await?;
        // The ids of generated questions are the same in all builds; the texts are not.
        let key = |it: &Question| (it.question_id.clone(), it.question_text.clone());
        let served: HashSet<_> = served.iter().map(key).collect();
        if let Some(missing) = self
            .questions()
            .iter()
            .find(|it| !served.contains(&key(it)))
        {
            bail!(
                "--env {address} serves other data than this command reads: it has no question \
                 {:?} with the text {:?}; give the folder of its data by --data, and its databases \
                 by --databases",
                missing.question_id,
                missing.question_text
            );
        }
        Ok(())
    }
}

/// Returns whether a run trains on the questions of a split.
pub(crate) fn is_training_split(split: &str) -> bool {
    split == "train" || split.starts_with("train/")
}

/// Starts the environment of a dataset.
///
/// # Errors
/// [`WrongSettings`], or the data or a file of the settings cannot be used.
pub(crate) fn open_environment(dataset: Dataset, settings: EnvSettings) -> Result<Environment> {
    Environment::open(dataset, settings).map_err(|error| match error {
        // A file may be a secret that is there at the next start.
        EnvError::Setting { field, .. } if !field.ends_with("_file") => {
            WrongSettings(error.into()).into()
        }
        _ => error.into(),
    })
}

/// Makes the servers of an environment.
///
/// # Errors
/// [`WrongSettings`].
pub(crate) fn open_node(environment: Environment, settings: EnvNodeSettings) -> Result<EnvNode> {
    let node = EnvNode::new(environment, settings);
    Ok(node.map_err(|error| WrongSettings(error.into()))?)
}

/// Connects to an env-node that serves.
pub(crate) async fn dial_serving_env(
    address: &str,
    credentials: &EnvCredentials,
) -> Result<Transport> {
    let env = dial_env(address, credentials)?;
    let request = ListQuestionsRequest {
        page_size: 1,
        ..ListQuestionsRequest::default()
    };
    let listed = env_client(env.clone()).list_questions(request).await;
    listed.map_err(|status| {
        let remedy = match status.code() {
            Code::Unauthenticated => "give its token by --env-token-file FILE",
            _ => {
                "check the address (http or https), start one with `sqlenv env-node`, or leave out \
                 --env to use one in this process"
            }
        };
        anyhow!(
            "--env {address}: no env-node serves this client ({}); {remedy}",
            status_text(&status)
        )
    })?;
    Ok(env)
}

/// Connects to the env-node, or the list of them, at --env, at the first call.
pub(crate) fn dial_env(address: &str, credentials: &EnvCredentials) -> Result<Transport> {
    let certificate = credentials.env_certificate_file.clone();
    let credentials = Credentials {
        ca_file: credentials.env_ca_file.clone(),
        certificate_and_key_files: certificate.zip(credentials.env_key_file.clone()),
        bearer_token_file: credentials.env_token_file.clone(),
    };
    dial("--env", address, &credentials)
}

/// Connects to the learner at --learner.
pub(crate) fn dial_learner(address: &str, credentials: &LearnerCredentials) -> Result<Transport> {
    let certificate = credentials.learner_certificate_file.clone();
    let credentials = Credentials {
        ca_file: credentials.learner_ca_file.clone(),
        certificate_and_key_files: certificate.zip(credentials.learner_key_file.clone()),
        bearer_token_file: credentials.learner_token_file.clone(),
    };
    dial("--learner", address, &credentials)
}

/// Connects to the address of a flag.
///
/// # Errors
/// [`WrongSettings`] for an address that cannot be read. A file of the credentials may be there at
/// the next start.
fn dial(flag: &'static str, address: &str, credentials: &Credentials) -> Result<Transport> {
    Transport::dial_with(address, credentials).map_err(|fault| {
        let is_address = matches!(fault, TransportError::Address { .. });
        let fault = anyhow::Error::new(fault).context(flag);
        match is_address {
            true => WrongSettings(fault).into(),
            false => fault,
        }
    })
}

/// Opens the questions, or builds the project's own if no folder is given.
pub(crate) fn open_dataset(config: &DataConfig, progress: &Progress) -> Result<Dataset> {
    let dir = match &config.dir {
        Some(dir) => dir.as_path(),
        None => {
            keep_other_seed()?;
            build_own(Path::new(OWN_DATA_DIR), data::DEFAULT_SEED, progress)?;
            Path::new(OWN_DATA_DIR)
        }
    };
    let stage = progress.stage("opening data", None, "questions");
    let dataset = Dataset::open(dir, config.databases.as_deref())?;
    stage.set(dataset.questions.len() as u64);
    stage.finish(&format!("{} databases", dataset.databases.len()));
    Ok(dataset)
}

/// Refuses to replace a build of another seed, which a user made with `sqlenv data build --seed`.
fn keep_other_seed() -> Result<()> {
    if let Ok(manifest) = data::Manifest::read(Path::new(OWN_DATA_DIR)) {
        ensure!(
            manifest.origin.is_build(),
            "{OWN_DATA_DIR} holds data of `sqlenv data {}`; use it by --data {OWN_DATA_DIR}, or \
             move it",
            manifest.origin.command()
        );
        ensure!(
            manifest.seed == data::DEFAULT_SEED,
            "{OWN_DATA_DIR} holds a build of seed {}; use it by --data {OWN_DATA_DIR}, or remove \
             it",
            manifest.seed
        );
    }
    Ok(())
}

/// Builds the project's own data, unless an equal build exists.
pub(crate) fn build_own(out: &Path, seed: u64, progress: &Progress) -> Result<()> {
    let mut stage = None;
    data::build(out, seed, &mut |done, total| {
        stage
            .get_or_insert_with(|| progress.stage("building data", total as u64, "databases"))
            .set(done as u64);
    })?;
    if let Some(stage) = stage {
        stage.finish(&format!("in {}", out.display()));
    }
    Ok(())
}

/// Opens the policy to start from.
pub(crate) fn base_model(config: &ModelConfig, seed: u64, placement: Placement) -> Result<Model> {
    match &config.dir {
        Some(dir) => open_model(dir, placement),
        None if config.random_weights => Ok(policy::embedded::model(derive_seed(seed, "weights"))?),
        None => Ok(policy::embedded::base()?),
    }
}

/// Checks that the model of the settings is there, and that it was trained for their contexts. Its
/// weights are not read.
pub(crate) fn check_model(config: &RunConfig) -> Result<()> {
    let model = match &config.model.dir {
        Some(dir) => Model::config_in(dir)?,
        None => policy::embedded::base()?.config,
    };
    check_context(&model, &config.model, &config.learner)
}

/// Checks that a model was trained for the contexts of the settings. `choice` are those that name
/// the model.
///
/// # Errors
/// [`WrongSettings`].
pub(crate) fn check_context(
    model: &DecoderConfig,
    choice: &ModelConfig,
    settings: &LearnerConfig,
) -> Result<()> {
    let checked = model.check_context(settings.rollout.max_context_tokens as usize);
    let explained = checked.map_err(|fault| {
        let fault = anyhow::Error::new(fault);
        match choice.dir {
            Some(_) => fault,
            // As with `--preset model` alone, whose settings are for another model.
            None => fault.context(format!(
                "without --model DIR the training starts from {}; give the model that these \
                 settings are for by --model DIR, or other settings",
                choice.name()
            )),
        }
    });
    Ok(explained.map_err(WrongSettings)?)
}

/// Returns the error of a learner that cannot be opened: [`WrongSettings`] if its settings cannot
/// be used, or not with the run in the folder.
pub(crate) fn opening_fault(fault: LearnerError) -> anyhow::Error {
    match fault {
        LearnerError::Setting { .. } | LearnerError::OtherSettings { .. } => {
            WrongSettings(fault.into()).into()
        }
        _ => fault.into(),
    }
}

/// Opens the model of `--policy base`.
pub(crate) fn embedded_base(config: &ModelConfig) -> Result<Model> {
    match &config.dir {
        None => Ok(policy::embedded::base()?),
        Some(dir) => bail!(
            "--policy base is the embedded policy; leave --policy out to use {}",
            dir.display()
        ),
    }
}

/// Opens the model of `--policy model`.
pub(crate) fn named_model(config: &RunConfig) -> Result<Model> {
    match &config.model.dir {
        Some(dir) => open_model(dir, config.placement()),
        None => bail!(
            "--policy model requires --model DIR: the folder runs/NAME/model of a run or any \
             Hugging Face folder; --policy base, and --policy random and oracle of `sqlenv eval`, \
             require no model"
        ),
    }
}

/// Returns the SPDX name of the licence that the data of the settings state, if they state one.
pub(crate) fn data_licence(config: &DataConfig) -> Option<String> {
    let dir = config.dir.as_deref().unwrap_or(Path::new(OWN_DATA_DIR));
    let manifest = data::Manifest::read(dir).ok()?;
    Some(manifest.licence).filter(|licence| licence != NO_LICENCE)
}

/// Opens a model folder on the CPU, in the dtype in which the model computes. A chat template that
/// does not print tool calls as they are read gets a prelude that states tools and calls.
pub(crate) fn open_model(dir: &Path, placement: Placement) -> Result<Model> {
    let (_, dtype) = placement.open(&Model::config_in(dir)?)?;
    with_tools(Model::open(dir, &Device::Cpu, dtype)?, dir)
}

/// Returns the model of a folder with a chat template that prints tool calls as they are read.
pub(crate) fn with_tools(model: Model, dir: &Path) -> Result<Model> {
    if model.chat.prints_tool_calls() {
        return Ok(model);
    }
    tracing::warn!(
        model = %dir.display(),
        "the chat template does not print tool calls as they are read, which is <tool_call> and \
         JSON with a name and arguments: prompts state the tools and this format in the system \
         message, and models that are saved have a template that does so"
    );
    Ok(model.with_tools_in_template()?)
}

/// Reports questions that cannot be used, so that none is dropped silently.
fn report_left_out(dataset: &Dataset, progress: &Progress) {
    let Some(first) = dataset.left_out.first() else {
        return;
    };
    progress.print(&format!(
        "{} questions left out, the first {first}",
        dataset.left_out.len()
    ));
}
