//! The threads that run SQL.
//!
//! Invariant: SQLite never runs on an async thread, and the queue is bounded: a full one refuses at once. Each thread
//! keeps the databases it used last open. Leaves out what a job does with a sandbox.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use tokio::sync::oneshot;

use crate::{
    config::{EnvConfig, SqlLimits},
    database::Database,
    error::EnvError,
    metrics::queue_depth,
    sandbox::Sandbox,
};

type Job = Box<dyn FnOnce(&mut Connections) + Send>;

/// A bounded queue in front of a fixed set of threads, which end when the pool is dropped.
pub(crate) struct Pool {
    jobs: SyncSender<Job>,
    waiting: Arc<AtomicUsize>,
}

/// The sandboxes one thread keeps, the newest used first.
struct Connections {
    open: VecDeque<(String, Sandbox)>,
    capacity: usize,
    limits: SqlLimits,
}

impl Pool {
    pub(crate) fn new(config: &EnvConfig) -> Result<Self, EnvError> {
        let (jobs, queue) = sync_channel::<Job>(config.sql_queue);
        let queue = Arc::new(Mutex::new(queue));
        let threads = match config.sql_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        for index in 0..threads {
            let queue = Arc::clone(&queue);
            let connections = Connections {
                open: VecDeque::new(),
                capacity: config.connections_per_thread,
                limits: config.sql.clone(),
            };
            thread::Builder::new()
                .name(format!("env-sql-{index}"))
                .spawn(move || work(&queue, connections))
                .map_err(|error| {
                    EnvError::Internal(format!("cannot start an SQL thread: {error}"))
                })?;
        }
        Ok(Self {
            jobs,
            waiting: Arc::new(AtomicUsize::new(0)),
        })
    }

    /// Runs `job` with a sandbox on `database`. A job whose caller has gone away before its turn is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        database: Arc<Database>,
        job: impl FnOnce(&Sandbox) -> T + Send + 'static,
    ) -> Result<T, EnvError> {
        let (reply, answer) = oneshot::channel();
        let waiting = Arc::clone(&self.waiting);
        let boxed: Job = Box::new(move |connections| {
            queue_depth(waiting.fetch_sub(1, Ordering::Relaxed) - 1);
            if reply.is_closed() {
                return;
            }
            let result = connections.get(&database).map(job);
            // The caller may leave at any time.
            let _ = reply.send(result);
        });
        queue_depth(self.waiting.fetch_add(1, Ordering::Relaxed) + 1);
        self.jobs.try_send(boxed).map_err(|refused| {
            let waiting = self.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
            queue_depth(waiting);
            match refused {
                TrySendError::Full(_) => EnvError::Overloaded { waiting },
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
                let sandbox =
                    Sandbox::open(database, &self.limits).map_err(|error| EnvError::Database {
                        name: key.clone(),
                        path: database.file.path.clone(),
                        reason: format!(
                            "cannot be opened: {error}; check that the file is still there"
                        ),
                    })?;
                self.open.truncate(self.capacity - 1);
                self.open.push_front((key.clone(), sandbox));
            }
        }
        Ok(&self.open[0].1)
    }
}
