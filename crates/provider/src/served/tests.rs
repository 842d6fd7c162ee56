//! The model lists of servers, in their own forms.

use serde_json::{Value, json};

use super::list::{MorePage, read_list};
use super::{Served, ServedModel};
use crate::catalog::Prices;

/// Window, trained window and output limit of the model `m` after these pages.
#[expect(clippy::needless_pass_by_value, reason = "tables are shorter without references")]
fn check(list: Value, page: Option<Value>, expected: [Option<u64>; 3]) {
    let (mut served, more) = read_list(&list);
    assert_eq!(more.is_some(), page.is_some(), "{list}");
    if let (Some(more), Some(page)) = (more, page) {
        more.add(&page, &mut served);
    }
    let model = served.find("m").cloned().unwrap_or_default();
    assert_eq!([model.window_tokens, model.trained_tokens, model.output_tokens], expected, "{list}");
}

#[expect(clippy::needless_pass_by_value, reason = "tables are shorter without references")]
fn list(entry: Value) -> Value {
    json!({ "object": "list", "data": [entry] })
}

#[test]
fn each_server_says_it_in_its_own_words() {
    // vLLM and SGLang.
    check(
        list(json!({"id": "m", "owned_by": "vllm", "max_model_len": 4096})),
        None,
        [Some(4096), None, None],
    );
    check(
        list(json!({"id": "m", "owned_by": "sglang", "max_model_len": 8192})),
        None,
        [Some(8192), None, None],
    );
    // LiteLLM, with unknown values.
    let lite = json!({"id": "m", "max_input_tokens": 128_000, "max_output_tokens": 16_384});
    check(list(lite), None, [Some(128_000), None, Some(16_384)]);
    let unknown = json!({"id": "m", "max_input_tokens": null, "max_output_tokens": null});
    check(list(unknown), None, [None, None, None]);
    // OpenRouter: the model supports more than the best provider offers.
    let router = json!({"id": "m", "context_length": 200_000,
        "top_provider": {"context_length": 131_072, "max_completion_tokens": 32_000}});
    check(list(router), None, [Some(131_072), None, Some(32_000)]);
    // Groq.
    let groq = json!({"id": "m", "context_window": 131_072, "max_completion_tokens": 8192});
    check(list(groq), None, [Some(131_072), None, Some(8192)]);
    // Gemini.
    let gemini = json!({"name": "models/m", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536});
    check(json!({"models": [gemini], "nextPageToken": "n"}), None, [Some(1_048_576), None, Some(65_536)]);
    // A bare array, and Mistral's longest context.
    check(json!([{"id": "m", "context_length": 32_768}]), None, [Some(32_768), None, None]);
    check(list(json!({"id": "m", "max_context_length": 32_768})), None, [None, Some(32_768), None]);
    // OpenAI and llama-cpp-python report nothing.
    check(list(json!({"id": "m", "owned_by": "me"})), None, [None, None, None]);
}

#[test]
fn some_servers_say_more_on_another_page() {
    let llama =
        json!({"id": "file.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 32_768, "n_ctx_train": 131_072}});
    let slots = json!({"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4});
    check(list(llama.clone()), Some(slots.clone()), [Some(8192), Some(131_072), None]);
    // An older one lists the trained maximum only; one that hides the page still has its list.
    let older = json!({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}});
    check(list(older), Some(slots), [Some(8192), Some(131_072), None]);
    check(list(llama), Some(json!({"error": "no"})), [Some(32_768), Some(131_072), None]);
    let ollama = json!({"id": "m:latest", "owned_by": "library"});
    let loaded = json!({"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]});
    check(list(ollama.clone()), Some(loaded), [Some(4096), None, None]);
    check(list(ollama), Some(json!({"models": []})), [None, None, None]);
    // Not every model of an Ollama server is from its library.
    let mixed = json!({"data": [
        {"id": "m:latest", "owned_by": "somebody"}, {"id": "n:latest", "owned_by": "library"}, {"id": ""},
    ]});
    let loaded = json!({"models": [{"model": "m:latest", "context_length": 4096}]});
    check(mixed, Some(loaded), [Some(4096), None, None]);
    let studio = json!({"id": "m", "owned_by": "organization_owner"});
    let page = json!({"data": [
        {"id": "other", "max_context_length": 1, "loaded_context_length": 1},
        {"id": "m", "max_context_length": 131_072, "loaded_context_length": 16_384},
    ]});
    check(list(studio.clone()), Some(page), [Some(16_384), Some(131_072), None]);
    let not_loaded = json!({"data": [{"id": "m", "max_context_length": 131_072}]});
    check(list(studio), Some(not_loaded), [None, Some(131_072), None]);
}

#[test]
fn what_no_model_could_have_is_not_believed() {
    for strange in [
        json!(0),
        json!(-1),
        json!("4096"),
        json!(4096.5),
        json!(u64::MAX),
        json!(1e300),
        json!([]),
        Value::Null,
    ] {
        check(list(json!({"id": "m", "max_model_len": strange})), None, [None, None, None]);
    }
    check(list(json!({"id": "m", "max_model_len": 4096.0})), None, [Some(4096), None, None]);
    for list in
        [json!(null), json!("models"), json!({}), json!({"data": 1}), json!({"data": [1, null, {"id": 7}]})]
    {
        assert_eq!(read_list(&list), (Served::default(), None), "{list}");
    }
    assert_eq!(read_list(&json!([{"id": "m"}])).1, None);
    let long: Vec<Value> = (0..30_000).map(|number| json!({"id": number.to_string()})).collect();
    assert_eq!(read_list(&json!(long)).0.models.len(), 20_000);
    // A server with several models has no page that covers all.
    let two = json!({"data": [{"id": "m", "owned_by": "llamacpp"}, {"id": "n", "owned_by": "llamacpp"}]});
    check(two, Some(json!({"default_generation_settings": {"n_ctx": 8192}})), [None, None, None]);
}

#[test]
fn a_model_is_found_by_its_names() {
    let named = |ids: &[&str]| {
        ids.iter().map(|id| ServedModel { id: (*id).to_owned(), ..ServedModel::default() }).collect()
    };
    let check = |served: &Served, name: &str, expected: Option<&str>| {
        assert_eq!(served.find(name).map(|model| model.id.as_str()), expected, "{name}");
    };
    let mut served = Served { models: named(&["a:latest", "b", "B2"]), ..Served::default() };
    served.models[1].aliases = vec!["bee".to_owned()];
    for (name, expected) in [
        ("a", Some("a:latest")),
        ("a:latest", Some("a:latest")),
        ("bee", Some("b")),
        ("b2", Some("B2")),
        ("c", None),
    ] {
        check(&served, name, expected);
    }
    check(&served, "é", None);
    let mut only = Served { models: named(&["file.gguf"]), takes_any_name: true, ..Served::default() };
    check(&only, "gpt-5.5", Some("file.gguf"));
    only.models.extend(named(&["other"]));
    check(&only, "gpt-5.5", None);
    only.models.truncate(1);
    only.takes_any_name = false;
    check(&only, "gpt-5.5", None);
}

#[test]
fn prices_are_dollars_a_token() {
    let check = |entry: Value, expected: Option<Prices>| {
        assert_eq!(read_list(&json!([entry])).0.models[0].prices, expected, "{entry}");
    };
    let prices =
        Prices { input: 150_000, output: 600_000, cache_read: None, cache_write: None, reasoning: None };
    check(json!({"id": "m", "pricing": {"prompt": "0.00000015", "completion": "0.0000006"}}), Some(prices));
    check(json!({"id": "m", "input_cost_per_token": 1.5e-7, "output_cost_per_token": 6e-7}), Some(prices));
    let cached = json!({"prompt": "0.00000015", "completion": "0.0000006", "input_cache_read": "0.000000075",
        "internal_reasoning": "0"});
    check(json!({"id": "m", "pricing": cached}), Some(Prices { cache_read: Some(75_000), ..prices }));
    check(
        json!({"id": "m", "pricing": {"prompt": "0", "completion": "0"}}),
        Some(Prices { input: 0, output: 0, ..prices }),
    );
    check(json!({"id": "m", "pricing": {"prompt": "-1", "completion": "-1"}}), None);
    check(json!({"id": "m", "pricing": {"prompt": "0.1"}}), None);
    check(json!({"id": "m", "pricing": "free"}), None);
    assert_eq!(MorePage::LlamaProps.path(), "/props");
}
