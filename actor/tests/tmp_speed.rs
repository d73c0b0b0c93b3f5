mod support;
use actor::*;
use policy::*;
#[tokio::test]
async fn speed() {
    let model = support::model(1);
    let engine = Engine::spawn(&model, 0, 512, &support::engine_settings(64, 512)).unwrap();
    let policy = ModelPolicy::new(engine, SamplingSettings::default());
    let seats: Vec<Seat> = (0..256).map(|m| Seat { question_id: "q-max".into(), coordinates: Coordinates { member: m, ..Default::default() } }).collect();
    let table = support::table(&model, support::FakeEnv::default(), support::limits(40, 512));
    let t = std::time::Instant::now();
    let played = table.play_all(&policy, &seats, 64, |_| ()).await;
    let s = t.elapsed().as_secs_f64();
    let tokens: u32 = played.iter().flat_map(|t| &t.turns).map(|t| t.completion_tokens).sum();
    let all: usize = played.iter().flat_map(|t| &t.segments).map(|t| t.tokens.len()).sum();
    println!("SPEED {tokens} sampled, {all} all, {s:.2} s, {:.0} sampled/s {:.0} all/s", tokens as f64 / s, all as f64 / s);
}
