//! Runs any action, as a trainer's parser may make it, with any token. It must be refused or
//! answered without a panic and without a reward that was not earned.

#![no_main]

use env_fuzz::Fixture;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

/// One input.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Bytes to change in a good token: where, and by what.
    changes: Vec<(u16, u8)>,
    /// A token in its place.
    token: Option<&'a [u8]>,
    action_type: &'a str,
    argument: &'a str,
}

thread_local! {
    static FIXTURE: Fixture = Fixture::open();
}

fuzz_target!(|input: Input<'_>| {
    FIXTURE.with(|fixture| {
        let mut token = input
            .token
            .map_or_else(|| fixture.token.clone(), <[u8]>::to_vec);
        for (at, by) in input.changes {
            if let Some(byte) = token.get_mut(usize::from(at)) {
                *byte ^= by;
            }
        }
        let is_good = token == fixture.token;
        let reply = fixture.step(&token, input.action_type, input.argument);
        assert_eq!(
            reply.is_some(),
            is_good,
            "forged tokens are refused, good ones are not"
        );
        let Some(observation) = reply.map(|reply| reply.observation) else {
            return;
        };
        assert_eq!(observation.step_count, 1);
        assert!(observation.reward.is_some_and(|reward| reward <= 1.0));
    });
});
