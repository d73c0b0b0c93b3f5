//! scratch
#![allow(clippy::all, clippy::disallowed_methods)]
use learner::sft::*;
use proto::v1::Segment;
use std::ops::ControlFlow;
fn main() {
    let threads: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let model = policy::tiny::model(1).unwrap();
    let eps: Vec<Segment> = (0..400u32)
        .map(|i| {
            let n = 80 + (i % 30) as usize;
            Segment {
                tokens: (0..n as u32).map(|t| (t * 37 + i) % 1000).collect(),
                mask: (0..n).map(|t| u8::from(t % 3 != 0)).collect(),
                logprobs: vec![0.0; n],
            }
        })
        .collect();
    let c = SftConfig {
        budget_tokens: 60_000,
        threads,
        ..SftConfig::from_scratch()
    };
    let t = std::time::Instant::now();
    let o = train(&model, &eps, &c, &mut |_| ControlFlow::Continue(())).unwrap();
    println!(
        "threads {threads}: {} tokens {} steps {:.0} tokens/s",
        o.tokens,
        o.steps,
        o.tokens as f64 / t.elapsed().as_secs_f64()
    );
}
