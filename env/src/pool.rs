//! The threads that run SQL, in two lanes.
//!
//! Invariant: SQLite never runs on an async thread, and the queues are bounded: a full queue
//! refuses a job at once. Each job first runs in the quick lane, on a small budget. A job that
//! needs more runs again in the full lane, so that short statements never wait for long ones. A job
//! that is known to be long goes to the full lane at once. A lane refuses what it would not begin
//! while its caller waits, if the jobs before it take as long as the last ones did. Each thread
//! keeps the databases open that it used last.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    error::EnvError,
    metrics::{self, BusyThread},
    open_database::OpenDatabase,
    sandbox::{QuickBudgetSpent, WorkBudget},
    settings::{EnvSettings, SqlLimits},
};

/// For how long a caller waits: as long as a call to env-node may take by default.
const CALL_TIME: Duration = Duration::from_secs(60);
/// What a job is assumed to take before one has run.
const FIRST_GUESS: Duration = Duration::from_millis(100);

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
    load: Arc<Load>,
}

/// The jobs that wait in a lane, and how long they will.
struct Load {
    threads: usize,
    waiting: AtomicUsize,
    /// The mean time of a job. Each new job counts for an eighth.
    job_nanoseconds: AtomicU64,
}

/// The databases that a thread keeps open, the last used first.
struct Connections {
    open: VecDeque<OpenDatabase>,
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

    /// Runs `job` with `database`, opened, starting in the lane of `budget`. A job that spends
    /// the quick budget runs a second time in the full lane. A job whose caller is gone before its
    /// turn is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        budget: WorkBudget,
        database: Arc<Database>,
        job: impl Fn(&OpenDatabase) -> Result<T, QuickBudgetSpent> + Send + Sync + 'static,
    ) -> Result<T, EnvError> {
        let lanes: &[&Lane] = match budget {
            WorkBudget::Quick => &[&self.quick, &self.full],
            WorkBudget::Full => &[&self.full],
        };
        let job = Arc::new(job);
        for lane in lanes {
            let (database, job) = (Arc::clone(&database), Arc::clone(&job));
            if let Ok(result) = lane.run(database, move |open| job(open)).await? {
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
        let (jobs, queue) = sync_channel::<Job>(settings.sql_queue);
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
                .map_err(|error| EnvError::Overloaded {
                    problem: format!(
                        "cannot start an SQL thread: {error}; lower sql_threads, or raise the \
                         limits of threads and memory (ulimit -u, ulimit -v)"
                    ),
                })?;
        }
        metrics::lane_opened(budget, threads, settings.sql_queue);
        Ok(Self {
            budget,
            jobs,
            load: Arc::new(Load::new(threads)),
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        database: Arc<Database>,
        job: impl FnOnce(&OpenDatabase) -> T + Send + 'static,
    ) -> Result<T, EnvError> {
        let (reply, answer) = oneshot::channel();
        let (budget, load) = (self.budget, Arc::clone(&self.load));
        let overloaded = || EnvError::Overloaded {
            problem: format!("{} queries wait", self.load.waiting.load(Ordering::Relaxed)),
        };
        if self.load.waiting_time() > CALL_TIME {
            return Err(overloaded());
        }
        let boxed: Job = Box::new(move |connections| {
            load.waiting.fetch_sub(1, Ordering::Relaxed);
            metrics::queue_changed(budget, -1.0);
            // SQL that nobody waits for would delay the jobs behind it.
            if reply.is_closed() {
                return;
            }
            let _busy = BusyThread::begin(budget);
            let result = load.timed(|| connections.get(&database).map(job));
            // An error means that the caller is gone.
            let _ = reply.send(result);
        });
        self.load.waiting.fetch_add(1, Ordering::Relaxed);
        metrics::queue_changed(budget, 1.0);
        self.jobs.try_send(boxed).map_err(|refused| {
            self.load.waiting.fetch_sub(1, Ordering::Relaxed);
            metrics::queue_changed(budget, -1.0);
            match refused {
                TrySendError::Full(_) => overloaded(),
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

impl Load {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            waiting: AtomicUsize::new(0),
            job_nanoseconds: AtomicU64::new(FIRST_GUESS.as_nanos() as u64),
        }
    }

    /// Returns for how long a new job would wait.
    fn waiting_time(&self) -> Duration {
        let waiting = self.waiting.load(Ordering::Relaxed) as u64;
        let mean = self.job_nanoseconds.load(Ordering::Relaxed);
        Duration::from_nanos(waiting.saturating_mul(mean) / self.threads.max(1) as u64)
    }

    /// Runs a job and counts its time.
    #[expect(
        clippy::disallowed_methods,
        reason = "the edge: how long jobs take decides only what is refused"
    )]
    fn timed<T>(&self, job: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = job();
        self.count(began.elapsed());
        result
    }

    fn count(&self, time: Duration) {
        let new = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / 8;
        let mean = |old: u64| Some((old - old / 8).saturating_add(new));
        let _ = self
            .job_nanoseconds
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, mean);
    }
}

fn work(queue: &Mutex<Receiver<Job>>, mut connections: Connections) {
    loop {
        let job = queue.lock().recv();
        let Ok(job) = job else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&mut connections)));
        if outcome.is_err() {
            // The panic may have left a connection in any state, so none is used again.
            connections.open.clear();
        }
    }
}

impl Connections {
    fn get(&mut self, database: &Arc<Database>) -> Result<&OpenDatabase, EnvError> {
        let name = &database.file.name;
        if let Some(index) = self.open.iter().position(|open| open.name() == name) {
            self.open.make_contiguous()[..=index].rotate_right(1);
            if self.open[0].is_current() {
                return Ok(&self.open[0]);
            }
            self.open.pop_front();
        }
        let open = || OpenDatabase::open(database, &self.limits, self.budget);
        let mut opened = open();
        // No file was left. The databases that were used longest ago give theirs back.
        if matches!(opened, Err(EnvError::Overloaded { .. })) && !self.open.is_empty() {
            self.open.truncate(self.open.len() / 2);
            opened = open();
        }
        let opened = opened?;
        self.open.truncate(self.capacity - 1);
        self.open.push_front(opened);
        Ok(&self.open[0])
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path, time::SystemTime};

    use data::DatabaseFile;

    use super::*;
    use crate::open_database::CHECK_EVERY;

    #[test]
    fn a_lane_expects_jobs_to_take_as_long_as_the_last_ones() {
        let load = Load::new(2);
        load.waiting.store(64, Ordering::Relaxed);
        assert!(load.waiting_time() < CALL_TIME, "64 sessions begin at once");
        (0..40).for_each(|_| load.count(Duration::from_secs(2)));
        let long = load.waiting_time().as_secs_f64();
        assert!(
            (62.0..=64.0).contains(&long),
            "{long} s for 32 turns of 2 s"
        );
        (0..80).for_each(|_| load.count(Duration::from_millis(1)));
        load.waiting.store(4_096, Ordering::Relaxed);
        assert!(load.waiting_time() < CALL_TIME, "short ones again");
    }

    fn create(path: &Path, statements: &str) {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch(statements).unwrap();
    }

    fn pool_of(path: &Path) -> (Pool, Arc<Database>) {
        let file = DatabaseFile::open("a", path).unwrap();
        let settings = EnvSettings {
            sql_threads: 1,
            ..EnvSettings::default()
        };
        let database = Database::open(&file, &settings.result, &settings.sql);
        (Pool::new(&settings).unwrap(), Arc::new(database.unwrap()))
    }

    /// Its hash says which data a run trains on. A copy has the same.
    #[tokio::test]
    async fn nothing_runs_on_a_file_that_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        let newer = folder.path().join("newer");
        let copy = || {
            std::fs::copy(&path, &newer).unwrap();
            std::fs::rename(&newer, &path).unwrap();
        };
        let replace = || {
            create(&newer, "CREATE TABLE b (a)");
            std::fs::rename(&newer, &path).unwrap();
        };
        // The clock of a file system may stand still for milliseconds.
        let write = || {
            create(&path, "CREATE TABLE c (a)");
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        let remove = || std::fs::remove_file(&path).unwrap();
        let changes: [(Option<&str>, &dyn Fn()); 4] = [
            (None, &copy),
            (Some("has changed"), &replace),
            (Some("has changed"), &write),
            (Some("is still there"), &remove),
        ];
        for is_open in [false, true] {
            for (problem, change) in changes {
                let _ = std::fs::remove_file(&path);
                create(&path, "CREATE TABLE a (b)");
                let (pool, database) = pool_of(&path);
                let run = async || {
                    let job = |_: &OpenDatabase| Ok(());
                    pool.run(WorkBudget::Quick, Arc::clone(&database), job)
                        .await
                };
                if is_open {
                    run().await.unwrap();
                }
                change();
                if is_open {
                    tokio::time::sleep(CHECK_EVERY).await;
                }
                let error = run().await.err().map(|error| error.to_string());
                assert_eq!(error.is_some(), problem.is_some(), "{error:?}");
                let (error, problem) = (error.unwrap_or_default(), problem.unwrap_or_default());
                assert!(error.contains(problem), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn a_job_starts_in_the_lane_of_its_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sqlite");
        create(&path, "CREATE TABLE a (b)");
        let (pool, database) = pool_of(&path);
        for budget in [WorkBudget::Quick, WorkBudget::Full] {
            let name = |_: &OpenDatabase| Ok(thread::current().name().map(str::to_owned));
            let ran_on = pool.run(budget, Arc::clone(&database), name).await;
            let expected = format!("env-sql-{}-0", budget.name());
            assert_eq!(ran_on.unwrap(), Some(expected));
        }
    }
}
