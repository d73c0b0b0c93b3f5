//! The threads that run SQL, in two lanes.
//!
//! Invariant: SQLite never runs on an async thread, and the queues are bounded: a full one refuses at once. Each job first
//! runs in the quick lane, on a small budget; one that needs more runs again in the patient lane, so that long statements
//! wait for each other and not short ones for them. A job that is known to be long goes to the patient lane at once. Each
//! thread keeps the databases it used last open. Leaves out what a job does with a sandbox.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use data::DatabaseFile;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    error::EnvError,
    metrics::queue_depth,
    sandbox::{Patience, Sandbox},
    settings::{EnvSettings, SqlLimits},
};

/// `EMFILE` and `ENFILE`, alike on Linux, macOS and the BSDs.
const NO_MORE_FILES: [i32; 2] = [24, 23];

type Job = Box<dyn FnOnce(&mut Connections) + Send>;

/// The lanes, whose threads end when the pool is dropped.
pub(crate) struct Pool {
    quick: Lane,
    patient: Lane,
    waiting: Arc<AtomicUsize>,
}

/// A bounded queue in front of a fixed set of threads.
struct Lane(SyncSender<Job>);

/// The sandboxes one thread keeps, the newest used first.
struct Connections {
    open: VecDeque<(String, Sandbox)>,
    capacity: usize,
    limits: SqlLimits,
    patience: Patience,
}

impl Pool {
    pub(crate) fn new(config: &EnvSettings) -> Result<Self, EnvError> {
        let threads = config.threads_per_lane();
        Ok(Self {
            quick: Lane::new(config, Patience::Quick, threads)?,
            patient: Lane::new(config, Patience::Full, threads)?,
            waiting: Arc::default(),
        })
    }

    /// Runs `job` with a sandbox on `database`; twice, where the first run is cut short, unless `patience` is full from the
    /// start. A job whose caller has gone away before its turn is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        patience: Patience,
        database: Arc<Database>,
        job: impl Fn(&Sandbox) -> T + Send + Sync + 'static,
    ) -> Result<T, EnvError> {
        let lanes: &[&Lane] = match patience {
            Patience::Quick => &[&self.quick, &self.patient],
            Patience::Full => &[&self.patient],
        };
        let job = Arc::new(job);
        for lane in lanes {
            let (database, job) = (Arc::clone(&database), Arc::clone(&job));
            let work = move |sandbox: &Sandbox| {
                let result = job(sandbox);
                (!sandbox.take_cut_short()).then_some(result)
            };
            if let Some(result) = lane.run(&self.waiting, database, work).await? {
                return Ok(result);
            }
        }
        Err(EnvError::Internal(
            "a statement was cut short on a full budget".to_owned(),
        ))
    }
}

impl Lane {
    fn new(config: &EnvSettings, patience: Patience, threads: usize) -> Result<Self, EnvError> {
        let (jobs, queue) = sync_channel::<Job>(config.sql_queue);
        let queue = Arc::new(Mutex::new(queue));
        for index in 0..threads {
            let queue = Arc::clone(&queue);
            let connections = Connections {
                open: VecDeque::new(),
                capacity: config.connections_per_thread,
                limits: config.sql.clone(),
                patience,
            };
            thread::Builder::new()
                .name(format!("env-sql-{patience}-{index}"))
                .spawn(move || work(&queue, connections))
                .map_err(|error| {
                    EnvError::Internal(format!("cannot start an SQL thread: {error}"))
                })?;
        }
        Ok(Self(jobs))
    }

    async fn run<T: Send + 'static>(
        &self,
        waiting: &Arc<AtomicUsize>,
        database: Arc<Database>,
        job: impl FnOnce(&Sandbox) -> T + Send + 'static,
    ) -> Result<T, EnvError> {
        let (reply, answer) = oneshot::channel();
        let left = Arc::clone(waiting);
        let boxed: Job = Box::new(move |connections| {
            queue_depth(left.fetch_sub(1, Ordering::Relaxed) - 1);
            if reply.is_closed() {
                return;
            }
            let result = connections.get(&database).map(job);
            // The caller may leave at any time.
            let _ = reply.send(result);
        });
        queue_depth(waiting.fetch_add(1, Ordering::Relaxed) + 1);
        self.0.try_send(boxed).map_err(|refused| {
            let waiting = waiting.fetch_sub(1, Ordering::Relaxed) - 1;
            queue_depth(waiting);
            match refused {
                TrySendError::Full(_) => EnvError::Overloaded {
                    problem: format!("{waiting} queries wait"),
                },
                TrySendError::Disconnected(_) => {
                    EnvError::Internal("the SQL threads ended".to_owned())
                }
            }
        })?;
        answer
            .await
            .map_err(|_| EnvError::Internal("an SQL thread panicked".to_owned()))?
    }
}

fn work(queue: &Mutex<Receiver<Job>>, mut connections: Connections) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&mut connections)));
        if outcome.is_err() {
            // What the panic left half done is not used again; the thread lives on.
            connections.open.clear();
        }
    }
}

impl Connections {
    fn get(&mut self, database: &Database) -> Result<&Sandbox, EnvError> {
        let key = &database.file.name;
        match self.open.iter().position(|(name, _)| name == key) {
            Some(index) => self.open.make_contiguous()[..=index].rotate_right(1),
            None => {
                let sandbox = Sandbox::open(database, &self.limits, self.patience)
                    .map_err(|error| cannot_open(&database.file, &error))?;
                self.open.truncate(self.capacity - 1);
                self.open.push_front((key.clone(), sandbox));
            }
        }
        Ok(&self.open[0].1)
    }
}

/// Whether the process, or the system, may open no more files.
fn are_files_used_up(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| NO_MORE_FILES.contains(&code))
}

/// Why a database cannot be opened: SQLite says the same of a file that is gone and of a process that has too many open.
fn cannot_open(file: &DatabaseFile, error: &rusqlite::Error) -> EnvError {
    match File::open(&file.path) {
        Err(cause) if are_files_used_up(&cause) => EnvError::Overloaded {
            problem: format!(
                "no file is left to open for database {:?}; if this lasts, raise `ulimit -n` or lower server.max_connections",
                file.name
            ),
        },
        _ => EnvError::Database {
            name: file.name.clone(),
            path: file.path.clone(),
            reason: format!("cannot be opened: {error}; check that the file is still there"),
        },
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[tokio::test]
    async fn a_job_starts_in_the_lane_of_its_patience() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE a (b)").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = DatabaseFile {
            name: "a".to_owned(),
            path,
            sha256: hex::encode(Sha256::digest(&bytes)),
            size_bytes: bytes.len() as u64,
        };
        let config = EnvSettings {
            sql_threads: 1,
            ..EnvSettings::default()
        };
        let database = Arc::new(Database::open(&file, &config.result, &config.sql).unwrap());
        let pool = Pool::new(&config).unwrap();
        for patience in [Patience::Quick, Patience::Full] {
            let name = |_: &Sandbox| thread::current().name().map(str::to_owned);
            let ran_on = pool.run(patience, Arc::clone(&database), name).await;
            assert_eq!(ran_on.unwrap(), Some(format!("env-sql-{patience}-0")));
        }
    }
}
