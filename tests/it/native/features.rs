//! The features of each API: the table of the guide, each cell of which names the test that shows it.
//!
//! Invariants: the table in the guide is the one that is made from `FEATURES`; each test that is named exists.

use std::fmt::Write as _;
use std::path::Path;

/// The guide's page with the table.
const PAGE: &str = "docs/guide/models.md";
const BEGIN: &str = "<!-- features: begin -->\n";
const END: &str = "<!-- features: end -->";

/// A feature with one API.
enum Cell {
    /// It has it, as the tests with these names show: the short name of a file in `FILES`, and a function.
    Yes(&'static [&'static str]),
    /// It has it with a restriction.
    Partly(&'static str, &'static [&'static str]),
    /// The API does not have it.
    No,
}

use Cell::{No, Partly, Yes};

/// The files with the tests, by their short names.
const FILES: &[(&str, &str)] = &[
    ("wire", "crates/provider/src/dialect/chat/wire/tests.rs"),
    ("assemble", "crates/provider/src/dialect/chat/assemble/tests.rs"),
    ("anthropic", "crates/provider/src/dialect/anthropic/tests.rs"),
    ("responses", "crates/provider/src/dialect/responses/tests.rs"),
    ("gemini", "crates/provider/src/dialect/gemini/tests.rs"),
    ("transport", "crates/provider/src/transport/tests.rs"),
    ("reader", "crates/provider/src/transport/reader/tests.rs"),
    ("limits", "crates/provider/src/transport/limits/tests.rs"),
    ("classify", "crates/provider/src/classify/tests.rs"),
    ("served", "crates/provider/src/served/tests.rs"),
    ("provider_conformance", "crates/simulator/src/provider_conformance/tests.rs"),
    ("server", "crates/simulator/src/server/tests.rs"),
    ("native", "tests/it/native.rs"),
    ("compaction", "tests/it/native/compaction.rs"),
    ("counting", "tests/it/native/counting.rs"),
];

const EVERY_API: &str = "provider_conformance our_provider_conforms_with_every_api";
const CHAT: &str = "provider_conformance our_openai_provider_conforms";
const SAME: &str = "server in_process_and_over_http_through_the_real_client_are_the_same";

/// The features, each with chat completions, Anthropic, Responses and Gemini.
const FEATURES: &[(&str, [Cell; 4])] = &[
    (
        "text, streamed and whole",
        [Yes(&[CHAT, SAME]), Yes(&[EVERY_API, SAME]), Yes(&[EVERY_API, SAME]), Yes(&[EVERY_API, SAME])],
    ),
    (
        "an answer that arrives in arbitrary chunks",
        [
            Yes(&["transport a_normal_stream", "transport incomplete_answers"]),
            Yes(&["reader an_answer_is_the_same_wherever_it_is_cut"]),
            Yes(&["reader an_answer_is_the_same_wherever_it_is_cut"]),
            Yes(&["reader an_answer_is_the_same_wherever_it_is_cut"]),
        ],
    ),
    (
        "tools, several calls in one answer",
        [
            Yes(&[CHAT, "assemble calls_in_fragments"]),
            Yes(&[EVERY_API]),
            Yes(&[EVERY_API]),
            Yes(&[EVERY_API]),
        ],
    ),
    (
        "one call at a time (`parallel_tool_calls: false`)",
        [
            Yes(&["wire one_call_at_a_time"]),
            Yes(&["anthropic settings_are_sent_under_the_apis_names"]),
            Yes(&["responses a_whole_request"]),
            No,
        ],
    ),
    (
        "images of the user",
        [
            Yes(&["wire user_messages"]),
            Yes(&["anthropic a_conversation_is_written_as_the_api_wants_it"]),
            Yes(&["responses messages_and_their_items"]),
            Yes(&["gemini a_conversation_is_written_as_the_api_wants_it"]),
        ],
    ),
    (
        "images in results of tools",
        [
            Partly("in a message after the results", &["wire tool_results"]),
            Yes(&["anthropic a_conversation_is_written_as_the_api_wants_it"]),
            Yes(&["responses messages_and_their_items"]),
            Partly(
                "before Gemini 3 in a message after the results",
                &["gemini a_conversation_is_written_as_the_api_wants_it"],
            ),
        ],
    ),
    (
        "reasoning is sent back",
        [
            Partly("if the server wants it", &["wire reasoning_goes_back_only_where_it_came_from"]),
            Yes(&[
                "anthropic what_came_is_sent_again",
                "native signatures_survive_compactions_and_a_restart",
            ]),
            Yes(&[
                "responses what_came_is_what_is_sent_again",
                "native signatures_survive_compactions_and_a_restart",
            ]),
            Yes(&["gemini what_came_is_sent_again", "native signatures_survive_compactions_and_a_restart"]),
        ],
    ),
    (
        "signed, encrypted and unknown blocks, byte for byte",
        [
            No,
            Yes(&[
                "anthropic what_came_is_sent_again",
                "native every_request_is_accepted_after_a_restart_too",
            ]),
            Yes(&[
                "responses what_came_is_what_is_sent_again",
                "native every_request_is_accepted_after_a_restart_too",
            ]),
            Yes(&[
                "gemini parts_that_nobody_knows_and_fields_of_another_type",
                "native every_request_is_accepted_after_a_restart_too",
            ]),
        ],
    ),
    (
        "dropped thinking is reported",
        [
            No,
            Yes(&[
                "anthropic dropped_thinking_is_reported_by_its_reason",
                "native dropped_thinking_is_told_once",
            ]),
            No,
            No,
        ],
    ),
    (
        "usage: cached input and reasoning reported separately",
        [
            Yes(&["assemble usage_in_all_its_places"]),
            Yes(&["anthropic usage_is_the_newest_of_each_count"]),
            Yes(&["responses usage_in_all_its_forms"]),
            Yes(&["gemini tokens_are_counted_as_the_api_means_them"]),
        ],
    ),
    (
        "reasons for the end, refusals",
        [
            Yes(&["transport complete_answers", "assemble refusals"]),
            Yes(&["anthropic ends_of_answers"]),
            Yes(&[
                "responses events_that_are_errors_and_events_that_are_not",
                "responses answers_that_refuse",
            ]),
            Yes(&["gemini ends_of_answers"]),
        ],
    ),
    ("a paused turn continues", [No, Yes(&["native a_paused_turn_continues"]), No, No]),
    (
        "typed answers",
        [
            Yes(&["wire a_whole_request"]),
            Yes(&["anthropic a_typed_answer_is_asked_for_by_its_schema"]),
            Yes(&["responses a_whole_request"]),
            Yes(&["gemini a_typed_answer_is_asked_for_by_its_schema"]),
        ],
    ),
    (
        "the provider counts tokens",
        [
            No,
            Partly(
                "not Bedrock, Vertex",
                &[
                    "anthropic a_count_is_asked_for_with_the_fields_that_count",
                    "counting the_compaction_comes_at_the_real_trigger",
                ],
            ),
            Yes(&[
                "responses a_count_is_asked_for_with_the_fields_that_count",
                "counting the_compaction_comes_at_the_real_trigger",
            ]),
            Yes(&[
                "gemini a_count_is_asked_for_with_the_whole_request",
                "counting the_compaction_comes_at_the_real_trigger",
            ]),
        ],
    ),
    (
        "the provider compacts",
        [
            No,
            Partly(
                "not Bedrock",
                &[
                    "compaction every_provider_that_can_compacts_by_itself",
                    "anthropic models_and_places_that_compact_by_themselves",
                ],
            ),
            Yes(&["compaction every_provider_that_can_compacts_by_itself"]),
            No,
        ],
    ),
    (
        "errors: overflows, waits, keys, overload",
        [
            Yes(&[CHAT, "classify overflows_with_their_sizes"]),
            Yes(&[EVERY_API, "anthropic error_bodies_have_their_class"]),
            Yes(&[EVERY_API, "responses refusals_and_their_classes"]),
            Yes(&[EVERY_API, "gemini refusals_have_their_class_and_wait"]),
        ],
    ),
    (
        "limits of the server, from headers",
        [
            Yes(&[
                "transport a_limit_that_is_used_up_makes_the_next_call_wait",
                "limits only_a_limit_that_is_used_up_makes_wait",
            ]),
            Yes(&["limits only_a_limit_that_is_used_up_makes_wait"]),
            Yes(&["limits only_a_limit_that_is_used_up_makes_wait"]),
            No,
        ],
    ),
    (
        "the list of models, with windows where it has them",
        [
            Yes(&["served each_server_says_it_in_its_own_words"]),
            Partly("names", &["served each_server_says_it_in_its_own_words"]),
            Partly("names", &["served each_server_says_it_in_its_own_words"]),
            Yes(&["served each_server_says_it_in_its_own_words"]),
        ],
    ),
];

/// Returns the table as Markdown.
fn table() -> String {
    let mut table =
        String::from("| | `Chat` | `Anthropic` | `Responses` | `Gemini` |\n|---|---|---|---|---|\n");
    for (feature, cells) in FEATURES {
        let cells = cells.each_ref().map(|cell| match cell {
            Yes(_) => "yes".to_owned(),
            Partly(words, _) => format!("yes ({words})"),
            No => "–".to_owned(),
        });
        writeln!(table, "| {feature} | {} |", cells.join(" | ")).unwrap();
    }
    table
}

fn read(path: &str) -> String {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("Cargo.lock").exists());
    std::fs::read_to_string(root.unwrap().join(path)).unwrap()
}

#[test]
fn the_table_of_the_guide_is_the_one_that_is_tested() {
    let page = read(PAGE);
    let (_, rest) = page.split_once(BEGIN).expect("the table has a begin");
    let (shown, _) = rest.split_once(END).expect("the table has an end");
    assert_eq!(shown, table(), "{PAGE}: between the two marks stands\n{}", table());
}

#[test]
fn each_cell_names_a_test_that_exists() {
    let mut seen = 0;
    for (feature, cells) in FEATURES {
        for cell in cells {
            let tests = match cell {
                Yes(tests) | Partly(_, tests) => *tests,
                No => continue,
            };
            assert!(!tests.is_empty(), "{feature} has no test");
            for test in tests {
                let (file, name) = test.split_once(' ').expect("a file and a name");
                let (_, path) = FILES.iter().find(|(short, _)| *short == file).expect("a known file");
                let is_test = |line: &str| {
                    let line = line.trim();
                    [format!("fn {name}() {{"), format!("async fn {name}() {{")]
                        .iter()
                        .any(|start| line == start)
                };
                assert!(read(path).lines().any(is_test), "{feature}: {path} has no test {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}
