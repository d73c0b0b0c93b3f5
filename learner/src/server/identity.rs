//! What an actor plays on and runs: the learner refuses one that differs, because its groups would
//! train the run on other data or by other rules.
//!
//! Pure. The files of the model are not compared: an actor has those that the learner sent it.

use proto::v1::{ActorIdentity, InfoResponse};

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the identity of an actor that plays on an env-node. The default reward profile of the
/// env-node is left out if the run names one, since it has no effect then.
pub fn expected_identity(info: &InfoResponse, profile_of_run: &str) -> ActorIdentity {
    let default_profile = match profile_of_run {
        "" => info.default_reward_profile.clone(),
        _ => String::new(),
    };
    ActorIdentity {
        program_version: VERSION.to_owned(),
        environment_version: info.environment_version.clone(),
        data_sha256: info.data_sha256.clone(),
        reward_profile: default_profile,
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
        (
            "has rewards of another profile",
            &found.reward_profile,
            &own.reward_profile,
            "give all env-nodes the same env.reward_profile, or name one in the run's settings \
             (learner.rollout.reward_profile)",
        ),
    ];
    // A profile that the run names is sent with each Reset.
    let compared = match own.reward_profile.as_str() {
        "" => &rows[..3],
        _ => &rows[..],
    };
    match compared.iter().find(|(_, found, own, _)| found != own) {
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
        let info = InfoResponse {
            environment_version: "3-ab".to_owned(),
            data_sha256: "cd".to_owned(),
            default_reward_profile: "default".to_owned(),
            ..InfoResponse::default()
        };
        let own = expected_identity(&info, "");
        compare(Some(&own), &own).unwrap();
        type Change = fn(&mut ActorIdentity);
        let table: [(Change, &str); 4] = [
            (
                |it| it.program_version = "0.0.1".to_owned(),
                "another version of the program (\"0.0.1\")",
            ),
            (
                |it| it.environment_version = "2-ab".to_owned(),
                "another environment version",
            ),
            (|it| it.data_sha256 = String::new(), "other data (\"\")"),
            (
                |it| it.reward_profile = "sqlenv-final".to_owned(),
                "rewards of another profile (\"sqlenv-final\")",
            ),
        ];
        for (change, expected) in table {
            let mut other = own.clone();
            change(&mut other);
            let fault = compare(Some(&other), &own).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
        let mut other = own.clone();
        other.reward_profile = "sqlenv-final".to_owned();
        let named = expected_identity(&info, "default");
        compare(Some(&other), &named).unwrap();
        assert!(compare(None, &own).unwrap_err().contains("does not say"));
    }
}
