//! The environment: datasets, databases and SQL threads joined to the pure step.
//!
//! Invariant: it holds nothing but caches. A result is a function of the arguments, the dataset,
//! the settings and, for the expiry of tokens, the time that the caller passes in.
//!
//! The wall clock is the one way by which a busy machine could change a result. A query that hits
//! it is therefore a fault of the machine: the call fails with [`EnvError::WallClock`], nothing is
//! kept, and the retry is the same step. Only if the same step hits it again is it answered, as an
//! observation, so that no query can hold up an episode for ever. Gold SQL belongs to the dataset
//! and not to the agent; a hit there always fails the call.

mod actions;

use std::{ops::Range, sync::Arc};

use data::{DatabaseFile, Dataset, Question};
use sha2::{Digest as _, Sha256};

use crate::{
    catalog::{Catalog, CatalogEntry, QuestionPage},
    episode::{self, Action, EpisodeSpec, EpisodeState, MAX_EPISODE_ID_CHARS, Observation},
    error::EnvError,
    metrics,
    pool::Pool,
    reward::{RewardComponents, RewardProfile},
    sandbox::self_test,
    schema::Schema,
    settings::{EnvSettings, MAX_STEP_BUDGET},
    token::{TokenBody, TokenError, TokenKey},
    wall_clock_hits::WallClockHits,
};

/// Runs episodes. Cheap to clone; all clones share databases and threads.
#[derive(Clone)]
pub struct Environment(Arc<EnvironmentState>);

struct EnvironmentState {
    settings: EnvSettings,
    version: String,
    data_sha256: String,
    key: TokenKey,
    wall_clock_hits: WallClockHits,
    catalog: Catalog,
    pool: Pool,
}

/// What Reset returns.
#[derive(Clone, Debug, PartialEq)]
pub struct ResetResult {
    /// The episode, for the first step.
    pub token: Vec<u8>,
    /// The name of the episode.
    pub episode_id: String,
    /// The question that was named or drawn.
    pub question_id: String,
    /// What the agent sees first.
    pub observation: Observation,
}

/// What a step returns.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// The episode after the action, for the next step.
    pub token: Vec<u8>,
    /// The question of the episode.
    pub question_id: String,
    /// What the agent sees.
    pub observation: Observation,
    /// The reward by layer.
    pub reward_components: RewardComponents,
    /// Whether the episode has ended with a right answer.
    pub correct: bool,
}

impl Environment {
    /// Reads the schemas of the databases, tests the sandbox and starts the SQL threads.
    ///
    /// # Errors
    /// A setting is out of range, the key file cannot be read, a database file is missing or
    /// broken, a question names an absent database, or the sandbox fails its self-test.
    pub fn open(dataset: Dataset, settings: EnvSettings) -> Result<Self, EnvError> {
        settings.validate()?;
        let shared_key = settings.shared_key()?;
        let data_sha256 = data_sha256(&dataset);
        let catalog = Catalog::open(dataset, &settings)?;
        // The self-test depends on the sandbox and not on the data, so the smallest file will do.
        let smallest = catalog
            .databases()
            .min_by_key(|database| database.file.size_bytes);
        smallest.map_or(Ok(()), |database| self_test(database, &settings.sql))?;
        Ok(Self(Arc::new(EnvironmentState {
            version: settings.environment_version(),
            data_sha256,
            key: shared_key.map_or_else(random_key, |key| Ok(TokenKey::new(key.as_bytes())))?,
            wall_clock_hits: WallClockHits::default(),
            catalog,
            pool: Pool::new(&settings)?,
            settings,
        })))
    }

    /// Returns the settings.
    pub fn settings(&self) -> &EnvSettings {
        &self.0.settings
    }

    /// Names the rules an episode is played by, see [`EnvSettings::environment_version`].
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Identifies the data: the SHA-256, in hexadecimal, of all questions with their answers and of
    /// all database files.
    pub fn data_sha256(&self) -> &str {
        &self.0.data_sha256
    }

    /// Returns whether the settings name the key that signs tokens, so that nodes can share
    /// episodes. Otherwise the key is random and tokens end with this process.
    pub fn has_shared_key(&self) -> bool {
        let settings = &self.0.settings;
        settings.signing_key.is_some() || settings.signing_key_file.is_some()
    }

    /// Returns the questions in the dataset's order, with their answers.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.0.catalog.questions()
    }

    /// Returns the database files by name.
    pub fn databases(&self) -> impl Iterator<Item = &DatabaseFile> {
        self.0.catalog.databases().map(|database| &database.file)
    }

    /// Returns the names of the splits, each with its number of questions.
    pub fn splits(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.catalog.split_sizes()
    }

    /// Lists the questions of a split whose place in it lies in `range`, in the dataset's order. An
    /// empty `split` selects all questions, a `database` that is not empty only those on it.
    ///
    /// # Errors
    /// There is no such split or database.
    pub fn list_questions(
        &self,
        split: &str,
        database: &str,
        range: Range<usize>,
    ) -> Result<QuestionPage<'_>, EnvError> {
        self.0.catalog.list(split, database, range)
    }

    /// Returns a question and the schema of its database.
    pub fn question(&self, question_id: &str) -> Option<(&Question, &Schema)> {
        let entry = self.0.catalog.get(question_id)?;
        Some((&entry.question, &entry.database.schema))
    }

    /// Starts an episode.
    ///
    /// # Errors
    /// There is no such question or split, or a field of `spec` is out of range.
    pub fn reset(&self, spec: EpisodeSpec, now_unix_seconds: u64) -> Result<ResetResult, EnvError> {
        let env = &self.0;
        let entry = env.catalog.choose(&spec)?;
        let reward_profile = env.reward_profile(&spec)?;
        let step_budget = env.step_budget(&spec)?;
        let question_id = entry.question.question_id.clone();
        let episode_id = episode_id(spec, &question_id)?;
        let body = TokenBody {
            environment_version: env.version.clone(),
            expires_at_unix_seconds: now_unix_seconds
                .saturating_add(env.settings.token_ttl_seconds),
            question_name: env.key.name_of(&entry.question_sha256),
            state: EpisodeState {
                episode_id: episode_id.clone(),
                question_id: question_id.clone(),
                reward_profile: reward_profile as i32,
                step_budget,
                ..EpisodeState::default()
            },
        };
        metrics::episode_started(reward_profile);
        let question_text = &entry.question.question_text;
        Ok(ResetResult {
            token: env.key.seal(&body),
            episode_id,
            question_id,
            observation: body
                .state
                .observation(question_text, &entry.database.schema),
        })
    }

    /// Applies one action to the episode in `token`.
    ///
    /// # Errors
    /// The token is refused, or the machine could not run the action. The step was then not
    /// applied.
    pub async fn step(
        &self,
        token: Vec<u8>,
        action: &Action,
        now_unix_seconds: u64,
    ) -> Result<StepResult, EnvError> {
        let env = &self.0;
        let mut body = env.key.open(&token, &env.version, now_unix_seconds)?;
        let entry = env.question_of(&body)?;
        let transition = if body.state.done {
            episode::apply_after_end(&body.state, env.settings.post_episode_penalty)
        } else {
            env.run_action(entry, &token, &body.state, action).await?
        };
        let (question, schema) = (&entry.question, &entry.database.schema);
        let (state, answered) = (transition.state, transition.answered);
        let correct = state.correct;
        let observation = Observation {
            reward: Some(transition.reward.total()),
            result: transition.result,
            error: transition.error,
            ..state.observation(&question.question_text, schema)
        };
        // The state of an episode never changes after its end, so the token stays the same.
        let token = if body.state.done {
            token
        } else {
            if state.done {
                metrics::episode_ended(&state, answered);
            }
            body.state = state;
            env.key.seal(&body)
        };
        Ok(StepResult {
            token,
            question_id: question.question_id.clone(),
            correct,
            reward_components: transition.reward.components(),
            observation,
        })
    }
}

/// Returns the SHA-256 of a dataset in hexadecimal, as [`Environment::data_sha256`].
pub fn data_sha256(dataset: &Dataset) -> String {
    let mut hash = Sha256::new();
    for question in &dataset.questions {
        let record = serde_json::to_vec(question);
        hash.update(record.expect("a question is plain data: this is a bug"));
        hash.update(b"\n");
    }
    for (name, file) in &dataset.databases {
        hash.update(format!("{name} {}\n", file.sha256));
    }
    hex::encode(hash.finalize())
}

impl EnvironmentState {
    fn reward_profile(&self, spec: &EpisodeSpec) -> Result<RewardProfile, EnvError> {
        if spec.reward_profile.is_empty() {
            return Ok(self.settings.reward_profile);
        }
        let profile = spec.reward_profile.parse::<RewardProfile>();
        profile.map_err(|error| EnvError::Request {
            field: "reward_profile",
            message: error.to_string(),
        })
    }

    fn step_budget(&self, spec: &EpisodeSpec) -> Result<u32, EnvError> {
        match spec.step_budget {
            0 => Ok(self.settings.step_budget),
            budget if budget <= MAX_STEP_BUDGET => Ok(budget),
            budget => Err(EnvError::Request {
                field: "step_budget",
                message: format!(
                    "step_budget is {budget}; give 1 to {MAX_STEP_BUDGET}, or 0 for the node's \
                     default"
                ),
            }),
        }
    }

    fn question_of(&self, body: &TokenBody) -> Result<&CatalogEntry, TokenError> {
        let question_id = &body.state.question_id;
        self.catalog
            .get(question_id)
            .filter(|entry| self.key.name_of(&entry.question_sha256) == body.question_name)
            .ok_or_else(|| TokenError::ForeignDatabase {
                question_id: question_id.clone(),
            })
    }
}

fn random_key() -> Result<TokenKey, EnvError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| EnvError::Internal(format!("the system gives no random key: {error}")))?;
    Ok(TokenKey::new(&bytes))
}

fn episode_id(spec: EpisodeSpec, question_id: &str) -> Result<String, EnvError> {
    if spec.episode_id.is_empty() {
        return Ok(format!("{question_id}#{}", spec.seed));
    }
    match spec.episode_id.chars().count() {
        ..=MAX_EPISODE_ID_CHARS => Ok(spec.episode_id),
        count => Err(EnvError::Request {
            field: "episode_id",
            message: format!(
                "episode_id has {count} characters; at most {MAX_EPISODE_ID_CHARS} are allowed"
            ),
        }),
    }
}
