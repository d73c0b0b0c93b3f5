//! The threads that run SQL, in two lanes.
//!
//! Invariant: SQLite never runs on an async thread, and the queues are bounded: a full queue
//! refuses a job at once. Each job first runs in the quick lane, on a small budget. A job that
//! needs more runs again in the full lane, so that short statements never wait for long ones. A job
//! that is known to be long goes to the full lane at once, whose queue holds no more than it can
//! serve while a caller waits. Each thread keeps the databases open that it used last.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use data::DatabaseFile;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    error::EnvError,
    metrics::{self, BusyThread},
    sandbox::{QuickBudgetSpent, Sandbox, WorkBudget},
    settings::{EnvSettings, SqlLimits},
};

/// `EMFILE` and `ENFILE`, the same on Linux, macOS and the BSDs.
const NO_MORE_FILES: [i32; 2] = [24, 23];

/// Seconds for which a caller waits: as long as a call to env-node may take by default.
const CALL_SECONDS: f64 = 60.0;

type Job = Box<dyn FnOnce(&mut Connections) + Send>;

/// The lanes, whose threads end when the pool is dropped.
pub(crate) struct Pool {
    quick: Lane,
    full: Lane,
}

/// A bounded queue in front of a fixed set of threads.
struct Lane {
    budget: WorkBudget,
    jobs: SyncSender<Job>,
    /// How many jobs may wait.
    capacity: usize,
}

/// The sandboxes that a thread keeps open, the last used first.
struct Connections {
    open: VecDeque<(String, Sandbox)>,
    capacity: usize,
    limits: SqlLimits,
    budget: WorkBudget,
}

impl Pool {
    pub(crate) fn new(settings: &EnvSettings) -> Result<Self, EnvError> {
        let threads = settings.threads_per_lane();
        Ok(Self {
            quick: Lane::new(settings, WorkBudget::Quick, threads)?,
            full: Lane::new(settings, WorkBudget::Full, threads)?,
        })
    }

    /// Runs `job` with a sandbox on `database`, starting in the lane of `budget`. A job that spends
    /// the quick budget runs a second time in the full lane. A job whose caller is gone before its
    /// turn is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        budget: WorkBudget,
        database: Arc<Database>,
        job: impl Fn(&Sandbox) -> Result<T, QuickBudgetSpent> + Send + Sync + 'static,
    ) -> Result<T, EnvError> {
        let lanes: &[&Lane] = match budget {
            WorkBudget::Quick => &[&self.quick, &self.full],
            WorkBudget::Full => &[&self.full],
        };
        let job = Arc::new(job);
        for lane in lanes {
            let (database, job) = (Arc::clone(&database), Arc::clone(&job));
            if let Ok(result) = lane.run(database, move |sandbox| job(sandbox)).await? {
                return Ok(result);
            }
        }
        Err(EnvError::Internal(
            "a statement spent the quick budget in the full lane: this is a bug".to_owned(),
        ))
    }
}

impl Lane {
    fn new(settings: &EnvSettings, budget: WorkBudget, threads: usize) -> Result<Self, EnvError> {
        let capacity = capacity(settings, budget, threads);
        let (jobs, queue) = sync_channel::<Job>(capacity);
        let queue = Arc::new(Mutex::new(queue));
        for index in 0..threads {
            let queue = Arc::clone(&queue);
            let connections = Connections {
                open: VecDeque::new(),
                capacity: settings.connections_per_thread,
                limits: settings.sql.clone(),
                budget,
            };
            thread::Builder::new()
                .name(format!("env-sql-{}-{index}", budget.name()))
                .spawn(move || work(&queue, connections))
                .map_err(|error| {
                    EnvError::Internal(format!("cannot start an SQL thread: {error}"))
                })?;
        }
        metrics::lane_opened(budget, threads, capacity);
        Ok(Self {
            budget,
            jobs,
            capacity,
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        database: Arc<Database>,
        job: impl FnOnce(&Sandbox) -> T + Send + 'static,
    ) -> Result<T, EnvError> {
        let (reply, answer) = oneshot::channel();
        let budget = self.budget;
        let boxed: Job = Box::new(move |connections| {
            metrics::queue_changed(budget, -1.0);
            // SQL that nobody waits for would delay the jobs behind it.
            if reply.is_closed() {
                return;
            }
            let _busy = BusyThread::begin(budget);
            let result = connections.get(&database).map(job);
            // An error means that the caller is gone.
            let _ = reply.send(result);
        });
        metrics::queue_changed(budget, 1.0);
        self.jobs.try_send(boxed).map_err(|refused| {
            metrics::queue_changed(budget, -1.0);
            match refused {
                TrySendError::Full(_) => EnvError::Overloaded {
                    problem: format!("{} queries wait", self.capacity),
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

/// Returns how many jobs may wait in a lane. In the full lane each of them may take all of its
/// seconds, and one that would not end while its caller waits only delays the others.
fn capacity(settings: &EnvSettings, budget: WorkBudget, threads: usize) -> usize {
    match budget {
        WorkBudget::Quick => settings.sql_queue,
        WorkBudget::Full => {
            let turns = (CALL_SECONDS / settings.sql.wall_clock_seconds) as usize;
            let served = threads.saturating_mul(turns);
            served.max(threads).min(settings.sql_queue)
        }
    }
}

fn work(queue: &Mutex<Receiver<Job>>, mut connections: Connections) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&mut connections)));
        if outcome.is_err() {
            // The panic may have left a connection in any state, so none is used again.
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
                let sandbox = Sandbox::open(database, &self.limits, self.budget)
                    .map_err(|error| cannot_open(&database.file, &error))?;
                self.open.truncate(self.capacity - 1);
                self.open.push_front((key.clone(), sandbox));
            }
        }
        Ok(&self.open[0].1)
    }
}

/// Explains why a database cannot be opened. SQLite reports a missing file and a process with too
/// many open files alike.
fn cannot_open(file: &DatabaseFile, error: &rusqlite::Error) -> EnvError {
    let is_out_of_files = |cause: &io::Error| {
        cause
            .raw_os_error()
            .is_some_and(|code| NO_MORE_FILES.contains(&code))
    };
    match File::open(&file.path) {
        Err(cause) if is_out_of_files(&cause) => EnvError::Overloaded {
            problem: format!(
                "no file is left to open for database {:?}; if this lasts, raise `ulimit -n` or \
                 lower connections_per_thread",
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
    use super::*;

    #[test]
    fn the_full_lane_queues_what_it_can_serve_in_a_call() {
        for (wall_clock_seconds, sql_queue, quick, full) in [
            (2.0, 4_096, 4_096, 60),
            (7.0, 4_096, 4_096, 16),
            (3_600.0, 4_096, 4_096, 2),
            (1e-300, 4_096, 4_096, 4_096),
            (2.0, 1, 1, 1),
        ] {
            let mut settings = EnvSettings {
                sql_queue,
                ..EnvSettings::default()
            };
            settings.sql.wall_clock_seconds = wall_clock_seconds;
            let lanes = [WorkBudget::Quick, WorkBudget::Full];
            let capacities = lanes.map(|budget| capacity(&settings, budget, 2));
            assert_eq!(capacities, [quick, full], "{wall_clock_seconds} s");
        }
    }

    #[tokio::test]
    async fn a_job_starts_in_the_lane_of_its_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE a (b)").unwrap();
        let file = DatabaseFile::open("a", &path).unwrap();
        let settings = EnvSettings {
            sql_threads: 1,
            ..EnvSettings::default()
        };
        let database = Arc::new(Database::open(&file, &settings.result, &settings.sql).unwrap());
        let pool = Pool::new(&settings).unwrap();
        for budget in [WorkBudget::Quick, WorkBudget::Full] {
            let name = |_: &Sandbox| Ok(thread::current().name().map(str::to_owned));
            let ran_on = pool.run(budget, Arc::clone(&database), name).await;
            let expected = format!("env-sql-{}-0", budget.name());
            assert_eq!(ran_on.unwrap(), Some(expected));
        }
    }
}
