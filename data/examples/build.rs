//! Builds the default data into a folder: `cargo run --release -p data --example build -- OUT [SEED]`.

use std::path::Path;

fn main() -> Result<(), data::DataError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(out) = arguments.first() else {
        return Err(data::DataError::Request(
            "usage: build OUT [SEED]".to_owned(),
        ));
    };
    let seed = arguments
        .get(1)
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(data::DEFAULT_SEED);
    data::build(Path::new(out), seed, &mut |progress| {
        println!(
            "{}/{} {}: {} questions",
            progress.done, progress.total, progress.database_name, progress.questions
        );
    })?;
    println!(
        "{}",
        data::stats(&data::Dataset::open(Path::new(out), None)?)
    );
    Ok(())
}
