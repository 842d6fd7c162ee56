//! The model of a simulated life: the seed, the session and the number of the call determine its answers.

use greenroom_kernel::StopReason;
use greenroom_simulator::{Answer, CallInfo, Function, Pace, Script, SeenRequest, Summariser};
use greenroom_store::faults::Random;
use serde_json::json;

use super::plan::{Plan, once_in, pick};

/// Returns unique words.
pub(crate) fn words(random: &mut Random, count: u64) -> String {
    let some =
        ["alpha", "src/main.rs", "river", "0x5f3e", "übung", "検索", "{\"a\":1}", "stone", "and", "of"];
    (0..count).map(|_| pick(random, &some)).collect::<Vec<_>>().join(" ")
}

/// Returns the script for runs.
pub(crate) fn runs(plan: &Plan) -> impl Script {
    let (words_max, asks) = (plan.words_max, plan.asks);
    Function(move |request: &SeenRequest, info: CallInfo| {
        let mut random = Random::new(info.seed);
        let mut dice = Random::new(info.seed ^ 0xa5c);
        let said = match dice.below(3) {
            0 if asks && request.has_tool("ask") => asking(&mut dice),
            _ => answer(&mut random, words_max),
        };
        let pace = match random.below(3) {
            0 => Pace { chunks: 1, first_ms: 0, between_ms: 0 },
            1 => Pace { chunks: 6, first_ms: random.below(3_000), between_ms: random.below(900) },
            _ => Pace { chunks: 3, first_ms: random.below(50), between_ms: 0 },
        };
        said.with_pace(pace)
    })
}

/// Calls that ask people, some of them beside calls that do not.
fn asking(dice: &mut Random) -> Answer {
    let mut said = Answer::text("");
    for _ in 0..1 + dice.below(3) {
        let name = pick(dice, &["ask", "confirm", "confirm", "look", "wait"]);
        let size = dice.below(400);
        said = said.and_call(name, &json!({ "size": size, "token": dice.number().to_string() }));
    }
    said
}

fn answer(random: &mut Random, words_max: u64) -> Answer {
    let text = |random: &mut Random| {
        let count = 1 + random.below(words_max.max(2));
        words(random, count)
    };
    match random.below(40) {
        0..=17 => Answer::text(text(random)),
        18..=31 => {
            let mut reply = Answer::text(if once_in(random, 2) { String::new() } else { words(random, 12) });
            for _ in 0..1 + random.below(3) {
                let name = pick(random, &["note", "note", "look", "look", "wait", "fail", "explode"]);
                let size = random.below(words_max.max(2));
                reply = reply.and_call(name, &json!({ "size": size, "token": random.number().to_string() }));
            }
            reply
        }
        32 => Answer::default().and_raw_call("note", "{\"size\": 3, \"token\":"),
        33 => Answer::call("no_such_tool", &json!({ "a": 1 })),
        34 => Answer::text("").with_finish(StopReason::Length),
        35 => Answer::text(""),
        36 => Answer::text("").with_finish(StopReason::ContentFilter),
        37 => Answer::text(text(random)).with_finish(StopReason::Length),
        38 => Answer::text("").with_reasoning(words(random, 30)),
        // The same call again and again, until a guard ends it.
        _ => Answer::call("look", &json!({ "size": 1, "token": "same" })),
    }
}

/// Returns the script for summaries.
pub(crate) fn summaries(plan: &Plan) -> impl Script {
    let bad = plan.bad_summaries;
    Function(move |request: &SeenRequest, info: CallInfo| {
        let mut random = Random::new(info.seed ^ 0x5eed);
        let kind = if once_in(&mut random, bad) {
            pick(&mut random, &Summariser::ALL)
        } else {
            Summariser::Obedient
        };
        kind.reply(request, info).after_ms(random.below(8_000))
    })
}
