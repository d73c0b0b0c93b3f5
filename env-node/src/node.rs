//! An env-node: datasets, databases and threads joined to the pure step.
//!
//! Invariant: the node holds caches only. A reply is a function of the request, the dataset, the config and, for
//! expiry, the clock that the caller passes in. Leaves out the wire (`grpc.rs`).
//!
//! The wall clock is the one way by which a busy machine could change a reply. A query that hits it is therefore a fault
//! of the machine: the call fails as `UNAVAILABLE`, nothing is kept, and the retry is the same step. Only if the same
//! step hits it again on this node is it answered, as an observation, so that no query can hold an episode up for ever.
//! Gold SQL belongs to the dataset and not to the agent; a hit there always fails the call.

use std::sync::Arc;

use data::{AnswerType, Dataset, Question};
use proto::v1::{
    self, Action, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, ResetRequest,
    ResetResponse, StepResponse,
};

use crate::{
    catalog::{Catalog, Item},
    config::{EnvConfig, MAX_STEP_BUDGET},
    episode::{self, Effect, EpisodeState, Outcome, Plan},
    error::EnvError,
    gold::{GoldRows, is_right},
    metrics,
    openenv::OpenEnvConfig,
    pool::Pool,
    progress::Profile,
    reward::RewardProfile,
    sandbox::{Failure, Patience, QueryError, Sandbox, self_test},
    serve::ServerConfig,
    setbacks::{Setbacks, StepId},
    token::{TokenBody, TokenError, TokenKey},
    web::WebConfig,
};

/// Longest episode id, in characters, as OpenEnv counts it.
pub(crate) const MAX_EPISODE_ID_CHARS: usize = 255;

/// Longest answer that may be checked where quick work is done: no budget ends the check of a longer one.
const QUICK_ANSWER_BYTES: usize = 16 << 10;

/// Serves episodes. Cheap to clone; all clones share databases and threads.
#[derive(Clone)]
pub struct EnvNode(Arc<Inner>);

struct Inner {
    config: EnvConfig,
    environment_version: String,
    key: TokenKey,
    has_shared_key: bool,
    setbacks: Setbacks,
    catalog: Catalog,
    pool: Pool,
}

impl EnvNode {
    /// Verifies every database by hash, reads the schemas, tests the sandbox and starts the SQL threads.
    ///
    /// # Errors
    /// A setting out of range, a key file that cannot be read, a database file that is missing, changed or broken, a question on an
    /// absent database, or a sandbox that fails its self-test.
    pub fn open(dataset: Dataset, config: EnvConfig) -> Result<Self, EnvError> {
        metrics::describe();
        config.validate()?;
        let shared_key = config.shared_key()?;
        let catalog = Catalog::open(dataset, &config)?;
        let smallest = catalog
            .databases()
            .min_by_key(|database| database.file.size_bytes);
        smallest.map_or(Ok(()), |database| self_test(database, &config.sql))?;
        Ok(Self(Arc::new(Inner {
            environment_version: config.environment_version(),
            has_shared_key: shared_key.is_some(),
            key: shared_key.map_or_else(random_key, |key| Ok(TokenKey::new(key.as_bytes())))?,
            setbacks: Setbacks::default(),
            catalog,
            pool: Pool::new(&config)?,
            config,
        })))
    }

    /// Whether the key that signs tokens was given, so that nodes can share episodes; else it is random and tokens end
    /// with this process.
    pub fn has_shared_key(&self) -> bool {
        self.0.has_shared_key
    }

    /// Settings of OpenEnv's faces.
    pub(crate) fn openenv_config(&self) -> &OpenEnvConfig {
        &self.0.config.openenv
    }

    /// Settings of the page.
    pub(crate) fn web_config(&self) -> &WebConfig {
        &self.0.config.web
    }

    /// The questions, in the dataset's order, with their answers.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &Question> {
        self.0.catalog.questions()
    }

    /// Settings of the server.
    pub(crate) fn server_config(&self) -> &ServerConfig {
        &self.0.config.server
    }

    /// Starts an episode.
    pub(crate) fn reset(
        &self,
        request: ResetRequest,
        now_unix_seconds: u64,
    ) -> Result<ResetResponse, EnvError> {
        let node = &self.0;
        let item = node.catalog.choose(&request)?;
        let question_id = item.question.question_id.clone();
        let reward_profile = match request.reward_profile.as_str() {
            "" => node.config.reward_profile,
            name => name
                .parse::<RewardProfile>()
                .map_err(|error| EnvError::Request {
                    field: "reward_profile",
                    message: error.to_string(),
                })?,
        };
        let step_budget = match request.step_budget {
            0 => node.config.step_budget,
            budget if budget <= MAX_STEP_BUDGET => budget,
            budget => {
                return Err(EnvError::Request {
                    field: "step_budget",
                    message: format!(
                        "step_budget is {budget}; give 1 to {MAX_STEP_BUDGET}, or 0 for the node's default"
                    ),
                });
            }
        };
        let episode_id = match request.episode_id {
            id if id.is_empty() => format!("{question_id}#{}", request.seed),
            id if id.chars().count() <= MAX_EPISODE_ID_CHARS => id,
            id => {
                return Err(EnvError::Request {
                    field: "episode_id",
                    message: format!(
                        "episode_id has {} characters; at most {MAX_EPISODE_ID_CHARS} are allowed",
                        id.chars().count()
                    ),
                });
            }
        };
        let body = TokenBody {
            environment_version: node.environment_version.clone(),
            expires_at_unix_seconds: now_unix_seconds.saturating_add(node.config.token_ttl_seconds),
            database_sha256: item.database.file.sha256.clone(),
            state: EpisodeState {
                episode_id: episode_id.clone(),
                question_id: question_id.clone(),
                reward_profile: reward_profile as i32,
                step_budget,
                ..EpisodeState::default()
            },
        };
        metrics::episode_started(reward_profile);
        Ok(ResetResponse {
            token: node.key.seal(&body),
            episode_id,
            question_id,
            observation: Some(
                body.state
                    .observation(&item.question.question_text, &item.database.schema),
            ),
        })
    }

    /// Applies one action to the episode in `token`.
    pub(crate) async fn step(
        &self,
        token: Vec<u8>,
        action: &Action,
        now_unix_seconds: u64,
    ) -> Result<StepResponse, EnvError> {
        let node = &self.0;
        let mut body = node
            .key
            .open(&token, &node.environment_version, now_unix_seconds)?;
        let item = node.question_of(&body)?;
        let effect = if body.state.done {
            episode::after_the_end(&body.state, node.config.post_episode_penalty)
        } else {
            node.play(item, &token, &body.state, action).await?
        };
        let token = if body.state.done {
            token
        } else {
            body.state.clone_from(&effect.state);
            if body.state.done {
                metrics::episode_ended(&body.state);
            }
            node.key.seal(&body)
        };
        Ok(response(token, effect, item))
    }

    /// Lists questions, without their answers.
    pub(crate) fn list_questions(
        &self,
        request: &ListQuestionsRequest,
    ) -> Result<ListQuestionsResponse, EnvError> {
        self.0.catalog.list(request)
    }

    /// Describes the node.
    pub(crate) fn info(&self) -> InfoResponse {
        let node = &self.0;
        let databases = node.catalog.databases().map(|database| v1::Database {
            name: database.file.name.clone(),
            sha256: database.file.sha256.clone(),
            size_bytes: database.file.size_bytes,
        });
        let splits = node.catalog.split_sizes().map(|(name, count)| v1::Split {
            name: name.to_owned(),
            question_count: count as u32,
        });
        InfoResponse {
            environment_version: node.environment_version.clone(),
            default_reward_profile: node.config.reward_profile.to_string(),
            default_step_budget: node.config.step_budget,
            databases: databases.collect(),
            splits: splits.collect(),
        }
    }
}

impl Inner {
    fn question_of(&self, body: &TokenBody) -> Result<&Item, TokenError> {
        let question_id = &body.state.question_id;
        self.catalog
            .get(question_id)
            .filter(|item| item.database.file.sha256 == body.database_sha256)
            .ok_or_else(|| TokenError::ForeignDatabase {
                question_id: question_id.clone(),
            })
    }

    async fn play(
        &self,
        item: &Item,
        token: &[u8],
        state: &EpisodeState,
        action: &Action,
    ) -> Result<Effect, EnvError> {
        let schema = &item.database.schema;
        let plan = episode::plan(action, schema, self.config.argument_bytes);
        let outcome = match &plan {
            Plan::Describe(table) => Outcome::Text(schema.tables[*table].description.clone()),
            Plan::Sample(table) => Outcome::Text(schema.tables[*table].sample.clone()),
            Plan::Query(sql) => self.query(item, token, sql).await?,
            Plan::Answer(answer) => Outcome::Verdict(self.is_right(item, answer).await?),
            Plan::Refuse(error) => Outcome::Error(error.clone()),
        };
        Ok(episode::apply(state, action, &plan, outcome))
    }

    async fn query(&self, item: &Item, token: &[u8], sql: &str) -> Result<Outcome, EnvError> {
        match self.run_query(item, sql).await? {
            Err(error)
                if error.failure == Failure::WallClock
                    && self.setbacks.is_first(StepId::new(token, sql)) =>
            {
                Err(EnvError::WallClock {
                    query: "the query".to_owned(),
                    seconds: self.config.sql.wall_clock_seconds,
                })
            }
            Err(error) => Ok(Outcome::Error(error.message)),
            Ok(outcome) => Ok(outcome),
        }
    }

    async fn run_query(
        &self,
        item: &Item,
        sql: &str,
    ) -> Result<Result<Outcome, QueryError>, EnvError> {
        let (sql, limits) = (sql.to_owned(), self.config.result);
        let (question, gold) = (Arc::clone(&item.question), Arc::clone(&item.gold));
        let work = move |sandbox: &Sandbox| {
            let run = sandbox.query(&sql);
            metrics::query_run(&run);
            let rows = match run.rows {
                Ok(rows) => rows,
                Err(error) => return Ok(Err(error)),
            };
            let gold = GoldRows::of(&question, &gold, sandbox)?;
            let level = gold
                .profile
                .as_ref()
                .map_or(0, |gold| Profile::new(&rows).level(gold));
            let text = rows.render(&limits);
            Ok(Ok(Outcome::Rows { text, level }))
        };
        self.pool
            .run(Patience::Quick, Arc::clone(&item.database), work)
            .await?
    }

    /// Short scalars are checked here; lists and tables, which need the gold rows, and what takes time, by the SQL threads.
    async fn is_right(&self, item: &Item, answer: &str) -> Result<bool, EnvError> {
        let needs_rows = matches!(
            item.question.answer_type,
            AnswerType::List | AnswerType::Table
        );
        let patience = match answer.len() {
            ..=QUICK_ANSWER_BYTES => Patience::Quick,
            _ => Patience::Full,
        };
        if !needs_rows && patience == Patience::Quick {
            return Ok(is_right(&item.question, None, answer));
        }
        let (question, gold, answer) = (
            Arc::clone(&item.question),
            Arc::clone(&item.gold),
            answer.to_owned(),
        );
        let work = move |sandbox: &Sandbox| {
            if !needs_rows {
                return Ok(is_right(&question, None, &answer));
            }
            let gold = GoldRows::of(&question, &gold, sandbox)?;
            Ok(is_right(&question, gold.rows.as_deref(), &answer))
        };
        self.pool
            .run(patience, Arc::clone(&item.database), work)
            .await?
    }
}

fn random_key() -> Result<TokenKey, EnvError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| EnvError::Internal(format!("the system gives no random key: {error}")))?;
    let key = TokenKey::new(&bytes);
    tracing::info!(
        key_id = key.id(),
        "signing episode tokens with a random key: they end with this process; set signing_key_file to share them between nodes"
    );
    Ok(key)
}

fn response(token: Vec<u8>, effect: Effect, item: &Item) -> StepResponse {
    let mut observation = effect
        .state
        .observation(&item.question.question_text, &item.database.schema);
    observation.result = effect.result;
    observation.error = effect.error;
    observation.reward = Some(effect.reward.total());
    StepResponse {
        token,
        observation: Some(observation),
        reward_components: Some(effect.reward.components()),
        correct: effect.state.correct,
    }
}
