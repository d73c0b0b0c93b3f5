//! What an actor plays on and runs: the learner refuses one that differs, because its groups would
//! train the run on other data or by other rules.
//!
//! Pure. The files of the model are not compared: an actor has those that the learner sent it.

use proto::v1::{ActorIdentity, InfoResponse};

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the identity of an actor that plays on an env-node.
pub fn expected_identity(info: &InfoResponse) -> ActorIdentity {
    ActorIdentity {
        program_version: VERSION.to_owned(),
        environment_version: info.environment_version.clone(),
        data_sha256: info.data_sha256.clone(),
    }
}

/// Compares the identity of an actor with the learner's.
///
/// # Errors
/// Names what differs and the remedy.
pub(crate) fn compare(found: Option<&ActorIdentity>, own: &ActorIdentity) -> Result<(), String> {
    let Some(found) = found else {
        return Err(format!(
            "the actor does not say what it plays on; run version {} of the program",
            own.program_version
        ));
    };
    let rows = [
        (
            "runs another version of the program",
            &found.program_version,
            &own.program_version,
            "run the learner's",
        ),
        (
            "plays by another environment version",
            &found.environment_version,
            &own.environment_version,
            "give all env-nodes the same version of the program and the same [env] settings",
        ),
        (
            "plays on other data",
            &found.data_sha256,
            &own.data_sha256,
            "give it an env-node that serves the same questions and databases (--data, \
             --databases) as the learner's --env",
        ),
    ];
    match rows.iter().find(|(_, found, own, _)| found != own) {
        None => Ok(()),
        Some((what, found, own, remedy)) => Err(format!(
            "the actor {what} ({found:?}) than the learner ({own:?}); {remedy}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_its_remedy() {
        let own = expected_identity(&InfoResponse {
            environment_version: "3-ab".to_owned(),
            data_sha256: "cd".to_owned(),
            ..InfoResponse::default()
        });
        compare(Some(&own), &own).unwrap();
        type Change = fn(&mut ActorIdentity);
        let table: [(Change, &str); 3] = [
            (
                |it| it.program_version = "0.0.1".to_owned(),
                "another version of the program (\"0.0.1\")",
            ),
            (
                |it| it.environment_version = "2-ab".to_owned(),
                "another environment version",
            ),
            (|it| it.data_sha256 = String::new(), "other data (\"\")"),
        ];
        for (change, expected) in table {
            let mut other = own.clone();
            change(&mut other);
            let fault = compare(Some(&other), &own).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
        assert!(compare(None, &own).unwrap_err().contains("does not say"));
    }
}
