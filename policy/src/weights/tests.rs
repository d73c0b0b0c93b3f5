//! Tests of weights: what is drawn, converted, written and read, and which sets are refused.

use super::*;

fn config() -> DecoderConfig {
    DecoderConfig::from_json(
        r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 500, "tie_word_embeddings": true}"#,
    )
    .unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn all(weights: &Weights) -> Vec<(String, Vec<f32>)> {
    weights
        .iter()
        .map(|(name, tensor)| (name.to_owned(), flat(tensor)))
        .collect()
}

fn load(dir: &Path) -> Result<Weights> {
    Weights::load(dir, &config(), &Device::Cpu, DType::F32)
}

#[test]
fn random_weights_have_the_stated_spread_and_are_reproducible() {
    let weights = Weights::random(&config(), 1).unwrap();
    assert_eq!(all(&weights), all(&Weights::random(&config(), 1).unwrap()));
    assert_ne!(all(&weights), all(&Weights::random(&config(), 2).unwrap()));
    let cases = [
        ("model.embed_tokens.weight", 0.07),
        ("model.layers.0.mlp.gate_proj.weight", 1.0 / 8.0),
        ("model.layers.3.mlp.down_proj.weight", 0.25 / 96_f64.sqrt()),
        ("model.layers.1.self_attn.o_proj.weight", 0.25 / 8.0),
    ];
    for (name, expected) in cases {
        let values = flat(weights.get(name).unwrap());
        let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let found = (squares / values.len() as f64).sqrt();
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{name}: {found} instead of {expected}"
        );
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.05 * expected, "{name}: mean {mean}");
    }
    assert!(
        flat(weights.get("model.norm.weight").unwrap())
            .iter()
            .all(|&x| x == 1.0)
    );
}

#[test]
fn weights_already_on_the_device_in_the_dtype_are_shared_and_others_converted() {
    let weights = Weights::random(&config(), 1).unwrap();
    let same = weights.to(&Device::Cpu, DType::F32).unwrap();
    for (name, tensor) in weights.iter() {
        assert_eq!(same.get(name).unwrap().id(), tensor.id());
    }
    let half = weights.to(&Device::Cpu, DType::BF16).unwrap();
    assert!(half.iter().all(|(_, tensor)| tensor.dtype() == DType::BF16));
    assert_eq!(
        half.fitted(&config()).unwrap().iter().count(),
        weights.iter().count()
    );
}

#[test]
fn weights_keep_the_dtype_that_they_travel_in() {
    let weights = Weights::random(&config(), 1).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let sent = weights.to(&Device::Cpu, dtype).unwrap();
        let bytes = sent.to_bytes().unwrap();
        let received = Weights::from_bytes_as_stored(&bytes).unwrap();
        assert!(received.iter().all(|(_, tensor)| tensor.dtype() == dtype));
        assert_eq!(received.to_bytes().unwrap(), bytes);
        let same = received.to(&Device::Cpu, dtype).unwrap();
        for (name, tensor) in received.iter() {
            assert_eq!(same.get(name).unwrap().id(), tensor.id(), "{name}");
        }
    }
}

#[test]
fn a_saved_folder_is_read_back_and_its_bytes_are_stable() {
    let dir = tempfile::tempdir().unwrap();
    let weights = Weights::random(&config(), 1).unwrap();
    weights.save(dir.path()).unwrap();
    assert_eq!(all(&load(dir.path()).unwrap()), all(&weights));
    let bytes = std::fs::read(dir.path().join(FILE)).unwrap();
    assert_eq!(bytes, load(dir.path()).unwrap().to_bytes().unwrap());
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let format = metadata
        .metadata()
        .as_ref()
        .and_then(|pairs| pairs.get("format"));
    assert_eq!(format.map(String::as_str), Some("pt"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn shards_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let weights = Weights::random(&config(), 1).unwrap();
    let mut shards = [Weights::default(), Weights::default()];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in weights.iter().enumerate() {
        shards[i % 2].0.insert(name.to_owned(), tensor.clone());
        map.insert(
            name.to_owned(),
            format!("part-{}.safetensors", i % 2).into(),
        );
    }
    for (i, shard) in shards.iter().enumerate() {
        let path = dir.path().join(format!("part-{i}.safetensors"));
        std::fs::write(path, shard.to_bytes().unwrap()).unwrap();
    }
    let index = serde_json::json!({"weight_map": map}).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    assert_eq!(all(&load(dir.path()).unwrap()), all(&weights));
    std::fs::remove_file(dir.path().join("part-1.safetensors")).unwrap();
    assert!(
        load(dir.path())
            .unwrap_err()
            .to_string()
            .contains("part-1.safetensors")
    );
}

#[test]
fn an_error_names_the_file_and_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains(FILE));
    std::fs::write(dir.path().join(FILE), b"nonsense").unwrap();
    assert!(
        load(dir.path())
            .unwrap_err()
            .to_string()
            .contains("not a safetensors file")
    );
    let spoiled = |spoil: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
        let mut weights = Weights::random(&config(), 1).unwrap();
        spoil(&mut weights.0);
        weights.save(dir.path()).unwrap();
        load(dir.path())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let norm = Tensor::zeros(7, DType::F32, &Device::Cpu).unwrap();
    let missing = spoiled(&|map| drop(map.remove("model.norm.weight"))).unwrap_err();
    assert!(
        missing.contains(FILE) && missing.contains("model.norm.weight: is missing"),
        "{missing}"
    );
    let misshaped = spoiled(&|map| drop(map.insert("model.norm.weight".into(), norm.clone())));
    assert!(
        misshaped
            .unwrap_err()
            .contains("[7], but config.json asks for [64]")
    );
    let unknown = spoiled(&|map| drop(map.insert("model.extra".into(), norm.clone())));
    assert!(unknown.unwrap_err().contains("model.extra"));
    // Some writers keep the tied head beside the embedding.
    spoiled(&|map| {
        let head = map["model.embed_tokens.weight"].clone();
        map.insert("lm_head.weight".into(), head);
    })
    .unwrap();
}

/// The embedding would be used in its place without a word.
#[test]
fn a_head_of_its_own_is_refused_in_a_tied_model() {
    let dir = tempfile::tempdir().unwrap();
    let weights = Weights::random(&config(), 1).unwrap();
    let embedding = weights.get(EMBEDDING).unwrap();
    let mut other = flat(embedding);
    other[499 * 64 + 63] += 0.5;
    let other = Tensor::from_vec(other, (500, 64), &Device::Cpu).unwrap();
    let short = embedding.narrow(0, 0, 499).unwrap().contiguous().unwrap();
    for (head, reason) in [
        (other, "set tie_word_embeddings to false"),
        (
            short,
            "has shape [499, 64], but config.json asks for [500, 64]",
        ),
    ] {
        let mut weights = weights.clone();
        weights.0.insert(HEAD.to_owned(), head);
        weights.save(dir.path()).unwrap();
        let refusal = load(dir.path()).unwrap_err().to_string();
        assert!(
            refusal.contains("lm_head.weight") && refusal.contains(reason),
            "{refusal}"
        );
        assert!(weights.fitted(&config()).is_err());
    }
    let mut kept = weights.clone();
    kept.0.insert(HEAD.to_owned(), embedding.clone());
    assert!(kept.fitted(&config()).unwrap().get(HEAD).is_err());
}

#[test]
fn weights_have_a_dtype_if_it_is_the_same_for_all() {
    let weights = Weights::random(&config(), 1).unwrap();
    assert_eq!(weights.dtype(), Some(DType::F32));
    let mut mixed = weights.to(&Device::Cpu, DType::BF16).unwrap();
    assert_eq!(mixed.dtype(), Some(DType::BF16));
    let embedding = weights.get(EMBEDDING).unwrap().clone();
    mixed.0.insert(EMBEDDING.to_owned(), embedding);
    assert_eq!(mixed.dtype(), None);
    assert_eq!(Weights::default().dtype(), None);
}

#[test]
fn a_file_is_that_of_safetensors_whatever_lies_in_memory() {
    let values = Tensor::arange(0_f32, 24., &Device::Cpu).unwrap();
    let values = values.reshape((4, 6)).unwrap();
    let as_dtype = |dtype| values.to_dtype(dtype).unwrap();
    let tensors = BTreeMap::from([
        ("a.f32", values.clone()),
        ("b.bf16", as_dtype(DType::BF16)),
        ("c.f16", as_dtype(DType::F16)),
        ("d.u8", as_dtype(DType::U8)),
        ("e.rows", values.narrow(0, 1, 2).unwrap()),
        ("f.columns", values.narrow(1, 1, 2).unwrap()),
        ("g.transposed", as_dtype(DType::BF16).t().unwrap()),
        ("h.empty", values.narrow(0, 0, 0).unwrap()),
    ]);
    let tensors: BTreeMap<_, _> = tensors
        .into_iter()
        .map(|(n, t)| (n.to_owned(), t))
        .collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    // By candle, which copies each tensor first.
    let expected = safetensors::serialize(&tensors, Some(metadata)).unwrap();
    assert_eq!(Weights::new(tensors).to_bytes().unwrap(), expected);
}
