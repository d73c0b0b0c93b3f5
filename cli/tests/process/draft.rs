//! Tests `sqlenv data draft`: questions about a stranger's database, which other commands read.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use crate::{
    endings::signal,
    outcomes::{fail, succeed},
    program::{Running, sqlenv},
};

fn output(args: &[&str]) -> (bool, String) {
    let output = sqlenv(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn shop(path: &Path) {
    let shop = rusqlite::Connection::open(path).unwrap();
    shop.execute_batch(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
         CREATE TABLE \"order\" (id INTEGER PRIMARY KEY, customer_id INTEGER, total_price REAL);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30)
         INSERT INTO customers SELECT i, 'Customer ' || i, char(65 + i % 4) || 'town', 20 + i * 7 % 50
         FROM n;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 90)
         INSERT INTO \"order\" SELECT i, 1 + i * i % 29, 5 + i * 37 % 400 / 2.0 FROM n",
    )
    .unwrap();
}

#[test]
fn a_drafted_folder_passes_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("shop.sqlite"), dir.path().join("data"));
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    shop(file.as_ref());
    let (is_ok, text) = output(&["data", "draft", out, "--database", file, "--count", "50"]);
    assert!(is_ok, "{text}");
    for part in [
        "level 0/1/2/3/4",
        "shop",
        "key inferred: order.customer_id refers to customers",
        "drafting: 50 questions",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (is_ok, text) = output(&["data", "check", out]);
    assert!(is_ok && text.contains(" 0 problems"), "{text}");
    let (is_ok, text) = output(&["data", "stats", out]);
    assert!(is_ok && text.contains("level-3"), "{text}");
}

#[test]
fn wrong_requests_name_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shop.sqlite");
    let (words, out) = (dir.path().join("words.toml"), dir.path().join("data"));
    shop(&file);
    fs::write(&words, "[tables.order]\nons = \"order\"").unwrap();
    let [file, words, out] = [&file, &words, &out].map(|it| it.to_str().unwrap());
    let draft = |more: &[&str]| {
        let mut command = sqlenv(&["data", "draft", out, "--database", file]);
        command.args(more);
        command
    };
    let text = fail(&mut draft(&["--words", words]), 1);
    assert!(text.contains("expected one of `one`"), "{text}");
    let text = fail(&mut draft(&[file, "--words", words]), 1);
    assert!(text.contains("--words is for one --database"), "{text}");
    let text = fail(&mut draft(&["--count", "0"]), 2);
    assert!(text.contains("1 or more"), "{text}");
}

/// The rows take long enough to draft about that a signal comes before the end.
fn large_shop(path: &Path) {
    shop(path);
    let shop = rusqlite::Connection::open(path).unwrap();
    shop.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 91 UNION ALL SELECT i + 1 FROM n LIMIT 20000)
         INSERT INTO \"order\" SELECT i, 1 + i * i % 29, 5 + i * 37 % 4000 / 2.0 FROM n",
    )
    .unwrap();
}

fn wait_for(path: &Path) {
    // A minute at least.
    for _ in 0..12_000 {
        if path.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{path:?} does not appear");
}

/// A draft that is interrupted leaves nothing at its place, and the next one removes what is beside
/// it.
#[test]
fn an_interrupted_draft_leaves_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    large_shop(&path("shop.sqlite"));
    let draft = |count| {
        let (out, file) = (path("data"), path("shop.sqlite"));
        let [out, file] = [&out, &file].map(|it| it.to_str().unwrap());
        sqlenv(&["data", "draft", out, "--database", file, "--count", count])
    };
    let mut command = draft("100000000");
    let child = command.stderr(Stdio::null()).stdout(Stdio::null());
    let mut running = Running(child.spawn().unwrap());
    wait_for(&path(".data.new/databases/shop/shop.sqlite"));
    signal(&running, "INT");
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    assert!(!path("data").exists());
    succeed(&mut draft("5"));
    let mut left: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["data", "shop.sqlite"]);
}

/// A small file system of its own, if this process may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=200k", "tmpfs"])
            .arg(&at)
            .output();
        mount.is_ok_and(|it| it.status.success()).then(|| Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The test has its result already.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk")) else {
        let line = "SKIPPED: a test of a full disk, because no file system can be mounted\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let (file, out) = (dir.path().join("shop.sqlite"), disk.0.join("data"));
    large_shop(&file);
    let [file, out] = [&file, &out].map(|it| it.to_str().unwrap());
    for command in ["draft", "import"] {
        let text = fail(&mut sqlenv(&["data", command, out, "--database", file]), 1);
        let is_named = text.contains(&format!("{out}/databases/shop/shop.sqlite: "));
        assert!(is_named && text.contains("free space"), "{text}");
        assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0, "{text}");
    }
}
